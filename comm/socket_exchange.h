// A RankExchange between processes of one host, over abstract Unix sockets.
//
//   absl::StatusOr<std::unique_ptr<RankExchange>> exchange =
//       MakeSocketExchange("my-group", rank, world, absl::Seconds(60));
//
// Rank 0 listens under a name made of the user and the group; the others connect to it. Only
// processes of the same user are accepted (SO_PEERCRED), and only ranks of the same world and
// group. Nothing is left behind in the file system. The name is free again when rank 0's object is
// destroyed, however its process ends.
//
// All waits are bounded: a call returns within its timeout and 2 s more, in which rank 0 tells the
// others who was missing. A rank that is missing is named on every rank that arrived.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/rank_exchange.h"

namespace stoker::comm {

// Collective. `group` has 1 to 200 bytes. kAlreadyExists if another group of that name is being
// created or alive on rank 0's side, kDeadlineExceeded naming the missing ranks,
// kFailedPrecondition for a peer of another world or build, or a rank that is there twice: that
// error goes to every rank that arrived.
absl::StatusOr<std::unique_ptr<RankExchange>> MakeSocketExchange(const std::string& group, int rank,
                                                                 int world, absl::Duration timeout);

}  // namespace stoker::comm
