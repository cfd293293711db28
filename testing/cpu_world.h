// The world "CPU ranks": N members of a group as threads of one process or as processes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/cpu_communicator.h"
#include "comm/rank_exchange.h"
#include "testing/rank_processes.h"

namespace stoker::testing {

// What one rank does with its member of the group.
using CpuRankMain =
    std::function<absl::Status(comm::CpuCommunicator& communicator, comm::RankExchange& exchange)>;

// One status a rank. Every rank closes its communicator afterwards if `rank_main` returned OK.
std::vector<absl::Status> RunCpuThreads(int world, const comm::GroupOptions& options,
                                        const CpuRankMain& rank_main);
std::vector<RankOutcome> RunCpuProcesses(int world, const comm::GroupOptions& options,
                                         absl::Duration timeout, const CpuRankMain& rank_main,
                                         RankOutput output = RankOutput::kInherited);

// A group name that no other test of this machine uses at the same time.
std::string UniqueGroupName();

}  // namespace stoker::testing
