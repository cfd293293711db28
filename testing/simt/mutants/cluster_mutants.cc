#include "testing/simt/bodies.h"
#include "testing/simt/mutants/mutant_environment.h"
#include "testing/simt/mutants/mutants.h"
#include "testing/simt/scenarios.h"

namespace stoker::testing::simt {
namespace {

// Sends partials to neighbours that may not have started.
class NoClusterBarrier : public MutantEnvironment {
 public:
  void ClusterWait() {}
};

// Reads the partials from its neighbour's shared memory.
class ReadsRemotePartials : public MutantEnvironment {
 public:
  float LoadPartial(int slot, int i) {
    TheMachine()->Point();
    return TheMachine()->Partial(slot, i, (cluster_rank() + 1) % cluster_size());
  }
};

// One buffer of partials instead of two.
class OnePartialsSlot : public MutantEnvironment {
 public:
  void ExpectPartials(int, int count) { SimtEnvironment::ExpectPartials(0, count); }
  void SendPartial(int, int i, int cta, float v) { SimtEnvironment::SendPartial(0, i, cta, v); }
  // Turn t is slot t mod 2 and phase t / 2 mod 2 of two buffers, and phase t mod 2 of one.
  void AwaitPartials(int slot, int) { SimtEnvironment::AwaitPartials(0, slot); }
  float LoadPartial(int, int i) {
    TheMachine()->Point();
    return SimtEnvironment::LoadPartial(0, i);
  }
};

// Takes the sum of the partials without waiting for those of the other warps.
class NoRowBarrier : public MutantEnvironment {
 public:
  void SyncRows(int) {}
};

template <class Env>
Mutant Make(const char* name, const char* what, const char* step, std::vector<Verdict> predicted,
            const Scenario& scenario) {
  return {name, what, step, predicted, scenario, BodyFor<Env>(scenario), ShippedBody(scenario)};
}

}  // namespace

std::vector<Mutant> ClusterMutants() {
  using V = Verdict;
  Scenario warps = Smallest();
  warps.packets = 34;
  warps.row_warps = 2;
  return {
      Make<NoClusterBarrier>("NoClusterBarrier", "does not meet its neighbours before it sends",
                             "a cluster: every CTA has started", {V::kBrokenMachine},
                             TwoCtasACluster()),
      Make<ReadsRemotePartials>("ReadsRemotePartials", "reads a neighbour's shared memory",
                                "a cluster: nobody reads what another CTA may take with it",
                                {V::kBrokenMachine, V::kWrongBits}, TwoCtasACluster()),
      Make<OnePartialsSlot>("OnePartialsSlot", "one buffer of partials",
                            "a cluster: a row's partials outlive the next row's arrival",
                            {V::kWrongBits}, TwoCtasACluster()),
      Make<NoRowBarrier>("NoRowBarrier", "does not wait for the other warps' partials",
                         "a CTA: its warps meet at each row", {V::kWrongBits}, warps),
  };
}

}  // namespace stoker::testing::simt
