#include "testing/simt/bodies.h"
#include "testing/simt/fault_plans.h"
#include "testing/simt/mutants/mutant_environment.h"
#include "testing/simt/mutants/mutants.h"
#include "testing/simt/scenarios.h"

namespace stoker::testing::simt {
namespace {

using comm::Packet;

// CTA 0 advances the epoch without waiting for the others' tickets.
class FirstCtaAdvances : public MutantEnvironment {
 public:
  uint32_t LoadWord(const uint32_t* p) {
    if (p == &control()->started) return 1u << 30;
    return SimtEnvironment::LoadWord(p);
  }
};

class DoesNotArrive : public MutantEnvironment {
 public:
  void ArriveRows() {}
};

// The rows say that they hold the epoch, and read it then.
struct EpochAfterArrival {
  template <int kVectors, class Env, class Producer, class Epilogue>
  static void Rows(Env env, const comm::ExchangeParams& p, comm::Launch& launch,
                   comm::Tokens tokens, const comm::Vectors<kVectors>& vectors, Producer& producer,
                   Epilogue& epilogue) {
    env.ArriveRows();
    launch = comm::BeginLaunch(env, p);
    OneShot::Rows(DoesNotArrive(), p, launch, tokens, vectors, producer, epilogue);
  }
};

// Takes the ticket without waiting for the rows.
class TicketBeforeTheRows : public MutantEnvironment {
 public:
  void AwaitRows() {}
};

class EpochBeforeTheWait : public MutantEnvironment {
 public:
  void GridDependencyWait() {}
  void ClusterWait() {
    SimtEnvironment::ClusterWait();
    SimtEnvironment::GridDependencyWait();
  }
};

// Knows its epoch from the host, and pushes before it waits for the grid before.
class PushesBeforeTheWait : public MutantEnvironment {
 public:
  void GridDependencyWait() {}
  uint32_t LoadWord(const uint32_t* p) {
    return p == &control()->epoch ? ThisEpoch() : SimtEnvironment::LoadWord(p);
  }
  void ClusterWait() {
    SimtEnvironment::ClusterWait();
    if (IsServiceWarp()) SimtEnvironment::GridDependencyWait();
  }
  void ArriveRows() {
    SimtEnvironment::ArriveRows();
    SimtEnvironment::GridDependencyWait();
  }
};

// Reads its inputs as the thread found them when it started, in front of the wait.
class InputsBeforeTheWait : public MutantEnvironment {
 public:
  Packet LoadInput(const Packet* p) {
    return Early([&] { return SimtEnvironment::LoadInput(p); });
  }
  Packet LoadStreamed(const Packet* p) {
    return Early([&] { return SimtEnvironment::LoadStreamed(p); });
  }

 private:
  template <class Load>
  Packet Early(Load load) {
    const uint32_t floor = agent().floor;
    agent().floor = agent().started;
    const Packet packet = load();
    agent().floor = floor;
    return packet;
  }
};

// A graph of three launches whose epochs were baked in when it was captured, and replayed.
class BakedEpoch : public MutantEnvironment {
 public:
  uint32_t LoadWord(const uint32_t* p) {
    if (p == &control()->epoch) return control()->first_epoch + static_cast<uint32_t>(launch() % 3);
    return SimtEnvironment::LoadWord(p);
  }
};

// Takes every header for the one it waits for.
class NoHeaderCheck : public MutantEnvironment {
 public:
  uint64_t LoadHeader(const uint64_t* p) {
    const uint64_t word = SimtEnvironment::LoadHeader(p);
    if (!IsHeader(p)) return word;
    return comm::HeaderWord(
        ThisEpoch(), IsTokensWord(p) ? static_cast<uint32_t>(params().tokens) : params().signature);
  }
};

// Compares what a header says and not when.
class HeaderWithoutEpoch : public MutantEnvironment {
 public:
  uint64_t LoadHeader(const uint64_t* p) {
    const uint64_t word = SimtEnvironment::LoadHeader(p);
    const uint32_t value =
        IsTokensWord(p) ? static_cast<uint32_t>(params().tokens) : params().signature;
    if (!IsHeader(p) || comm::HeaderValue(word) != value) return word;
    return comm::HeaderWord(ThisEpoch(), value);
  }
};

// Both parities share a slot; the epoch before is then what "not launched yet" looks like.
class OneHeaderSlot : public MutantEnvironment {
 public:
  uint64_t LoadHeader(const uint64_t* p) {
    const uint64_t word = SimtEnvironment::LoadHeader(First(p));
    if (comm::HeaderEpoch(word) != ThisEpoch() - 1u) return word;
    return comm::HeaderWord(ThisEpoch() - 2u, comm::HeaderValue(word));
  }
  void StoreHeader(uint64_t* p, uint64_t v) { SimtEnvironment::StoreHeader(First(p), v); }

 private:
  uint64_t* First(const uint64_t* p) const {
    int rank;
    const int64_t offset = HeaderOffset(p, &rank);
    if (offset < 0) return const_cast<uint64_t*>(p);
    return reinterpret_cast<uint64_t*>(
        reinterpret_cast<char*>(comm::HeadersOf(params().workspace[rank])) +
        offset % (int64_t{comm::kWorldMax} * int64_t{sizeof(comm::Header)}));
  }
};

// Stores a header word as two halves.
class TornHeader : public MutantEnvironment {
 public:
  void StoreHeader(uint64_t* p, uint64_t v) {
    uint32_t* halves = reinterpret_cast<uint32_t*>(p);
    SimtEnvironment::StoreWord(halves, static_cast<uint32_t>(v));
    SimtEnvironment::StoreWord(halves + 1, static_cast<uint32_t>(v >> 32));
  }
};

template <class Env>
Mutant Make(const char* name, const char* what, const char* step, std::vector<Verdict> predicted,
            const Scenario& scenario) {
  return {name, what, step, predicted, scenario, BodyFor<Env>(scenario), ShippedBody(scenario)};
}

}  // namespace

std::vector<Mutant> EpochMutants() {
  using V = Verdict;
  Scenario early = Smallest();
  early.early_trigger = true;
  early.tokens = {1, 1, 1, 1, 1, 1};
  Scenario repeated = NoTokensBetween();
  repeated.tokens = {1, 0, 1, 0, 1, 0, 1, 0, 1};
  Scenario changing = Smallest();
  changing.tokens = {1, 2, 2, 1, 1, 2};
  const Scenario mismatch = ScenarioOf("OtherTokens", 1, 1);
  Mutant after{"EpochAfterArrival",
               "rows read the epoch after they have arrived",
               "the epoch: a ticket is taken behind the reads",
               {V::kHang, V::kWrongBits, V::kFalseAlarm},
               TwoClusters(),
               RunBody<SimtEnvironment, EpochAfterArrival, Plain, 1>,
               ShippedBody(TwoClusters())};
  return {
      Make<FirstCtaAdvances>("FirstCtaAdvances", "CTA 0 advances the epoch by itself",
                             "the epoch: CTA 0 waits for every ticket",
                             {V::kHang, V::kWrongBits, V::kFalseAlarm}, TwoClusters()),
      after,
      Make<TicketBeforeTheRows>("TicketBeforeTheRows", "the ticket does not wait for the rows",
                                "the epoch: a ticket is taken behind the reads",
                                {V::kHang, V::kWrongBits, V::kFalseAlarm}, TwoClusters()),
      Make<EpochBeforeTheWait>("EpochBeforeTheWait", "reads the epoch before the grid dependency",
                               "1: only after griddepcontrol.wait",
                               {V::kHang, V::kWrongBits, V::kFalseAlarm}, early),
      Make<PushesBeforeTheWait>("PushesBeforeTheWait", "pushes before the grid dependency",
                                "1: only after griddepcontrol.wait", {V::kHang, V::kWrongBits},
                                early),
      Make<InputsBeforeTheWait>("InputsBeforeTheWait", "loads inputs before the grid dependency",
                                "(iii): what earlier grids wrote is read after the wait",
                                {V::kWrongBits}, early),
      Make<BakedEpoch>("BakedEpoch", "the epoch is baked into a graph that is replayed",
                       "the epoch is counted on the device",
                       {V::kHang, V::kWrongBits, V::kFalseAlarm}, early),
      Make<NoHeaderCheck>("NoHeaderCheck", "does not wait for the peers' headers",
                          "2 and 4: a header from every peer in every epoch",
                          {V::kHang, V::kWrongBits}, NoTokensBetween()),
      Make<NoHeaderCheck>("NoMismatchReport", "does not look at what the peers launched",
                          "a mismatch is reported at once",
                          {V::kWrongBits, V::kFalseAlarm, V::kNoReport}, mismatch),
      Make<HeaderWithoutEpoch>("HeaderWithoutEpoch", "compares a header's value and not its epoch",
                               "a header word carries its epoch", {V::kHang, V::kWrongBits},
                               repeated),
      Make<OneHeaderSlot>("OneHeaderSlot", "one header slot for both parities",
                          "a slot holds epoch e - 2 before B launches e", {V::kFalseAlarm},
                          Smallest()),
      Make<TornHeader>("TornHeader", "stores a header word in two halves",
                       "a header word is one 64-bit store", {V::kFalseAlarm}, changing),
  };
}

}  // namespace stoker::testing::simt
