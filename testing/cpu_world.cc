#include "testing/cpu_world.h"

#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/socket_exchange.h"
#include "comm/thread_exchange.h"
#include "testing/scratch.h"
#include "testing/unique_name.h"

namespace stoker::testing {
namespace {

absl::Status RunMember(const comm::GroupOptions& options, comm::RankExchange& exchange,
                       const CpuRankMain& rank_main) {
  STOKER_ASSIGN_OR_RETURN(std::unique_ptr<comm::CpuCommunicator> communicator,
                          comm::CpuCommunicator::Create(options, exchange));
  STOKER_RETURN_IF_ERROR(rank_main(*communicator, exchange));
  return communicator->Close(exchange, absl::Seconds(10));
}

// A group whose processes are killed leaves its segments (GroupOptions::SegmentName).
absl::StatusOr<Scratch> SegmentsOf(const comm::GroupOptions& options) {
  return Scratch::Segments(absl::StrCat("stoker_", options.name, "_"));
}

}  // namespace

std::vector<absl::Status> RunCpuThreads(int world, const comm::GroupOptions& options,
                                        const CpuRankMain& rank_main) {
  const absl::StatusOr<Scratch> segments = SegmentsOf(options);
  if (!segments.ok()) return std::vector<absl::Status>(world, segments.status());
  auto exchanges = comm::MakeThreadExchanges(world);
  std::vector<absl::Status> statuses(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back(
        [&, rank] { statuses[rank] = RunMember(options, *exchanges[rank], rank_main); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

std::vector<RankOutcome> RunCpuProcesses(int world, const comm::GroupOptions& options,
                                         absl::Duration timeout, const CpuRankMain& rank_main,
                                         RankOutput output) {
  const absl::StatusOr<Scratch> segments = SegmentsOf(options);
  if (!segments.ok()) {
    return std::vector<RankOutcome>(world,
                                    {RankOutcome::Kind::kExited, segments.status(), /*output=*/""});
  }
  const auto member = [&](int rank) -> absl::Status {
    STOKER_ASSIGN_OR_RETURN(
        std::unique_ptr<comm::RankExchange> exchange,
        comm::MakeSocketExchange(options.name, rank, world, options.setup_timeout));
    return RunMember(options, *exchange, rank_main);
  };
  return RunRankProcesses(world, timeout, member, output);
}

std::string UniqueGroupName() { return UniqueName("test"); }

}  // namespace stoker::testing
