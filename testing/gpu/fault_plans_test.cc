// Every fault plan that can happen on a GPU, with ranks as streams of one process: three threads
// that follow the plan's script. After each the process and its CUDA context work on.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/thread_exchange.h"
#include "testing/faults/rows.h"
#include "testing/faults/script.h"
#include "testing/gpu/fault_member.h"
#include "testing/gpu/gpu_fixture.h"

namespace stoker::testing {
namespace {

constexpr FaultPatience kPatience{.deadline = absl::Milliseconds(300),
                                  .precise = absl::Milliseconds(500),
                                  .slack = absl::Milliseconds(150),
                                  .launches_after = 100};

class FaultPlansOnStreams : public GpuTest, public ::testing::WithParamInterface<FaultPlan> {};

TEST_P(FaultPlansOnStreams, GiveWhatTheTableSays) {
  const FaultPlan& plan = GetParam();
  const Fault fault = DrawFault(plan, FaultSeed());
  // A second group for the plan that makes one.
  auto first = comm::MakeThreadExchanges(kFaultRanks);
  auto second = comm::MakeThreadExchanges(kFaultRanks);
  std::vector<absl::Status> statuses(kFaultRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kFaultRanks; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = RunFaultScript(
          plan, fault, rank, "plan", kPatience, [&](const comm::GroupOptions& options) {
            auto& exchange = first[rank] != nullptr ? first[rank] : second[rank];
            return MakeGpuFaultMember(options, std::move(exchange), false);
          });
    });
  }
  for (std::thread& thread : threads) thread.join();
  bool passed = true;
  for (int rank = 0; rank < kFaultRanks; ++rank) {
    EXPECT_TRUE(statuses[rank].ok())
        << "rank " << rank << " (rank " << fault.rank << " deviates in launch " << fault.launch
        << "): " << statuses[rank];
    passed = passed && statuses[rank].ok();
  }
  WriteFaultRow(plan, FaultWorld::kGpuStreams, passed);
}

INSTANTIATE_TEST_SUITE_P(Plans, FaultPlansOnStreams,
                         ::testing::ValuesIn(FaultPlansOf(FaultWorld::kGpuStreams)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stoker::testing
