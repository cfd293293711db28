#include "testing/gpu/fault_streams.h"

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/thread_exchange.h"
#include "testing/faults/script.h"

namespace stoker::testing {
namespace {

constexpr FaultPatience kPatience{.deadline = absl::Milliseconds(300),
                                  .precise = absl::Milliseconds(500),
                                  .slack = absl::Milliseconds(150),
                                  .launches_after = 100};

}  // namespace

absl::Status RunOnGpuStreams(const FaultPlan& plan, uint64_t seed, const FaultKernels* kernels) {
  const Fault fault = DrawFault(plan, seed);
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
            return MakeGpuFaultMember(options, std::move(exchange), false, kernels);
          });
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string failures;
  for (int rank = 0; rank < kFaultRanks; ++rank) {
    if (statuses[rank].ok()) continue;
    absl::StrAppend(&failures, "; rank ", rank, ": ", statuses[rank].ToString());
  }
  if (failures.empty()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("rank ", fault.rank, " deviates in launch ", fault.launch, failures));
}

}  // namespace stoker::testing
