// A RankExchange between processes of one host, over abstract Unix sockets.
//
// Rank 0 listens under a name made of the user and the group; the others connect to it. Only
// processes of the same user are accepted (SO_PEERCRED), and only ranks of the same world and
// group. Nothing is left behind in the file system. All waits are bounded; a rank that is missing
// is named on every rank that arrived.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/rank_exchange.h"

namespace stoker::comm {

// Collective. kAlreadyExists if another group of that name is being created or alive on rank 0's
// side, kDeadlineExceeded naming the missing ranks, kFailedPrecondition for a peer of another world
// or user.
absl::StatusOr<std::unique_ptr<RankExchange>> MakeSocketExchange(const std::string& group, int rank,
                                                                 int world, absl::Duration timeout);

}  // namespace stoker::comm
