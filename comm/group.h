// What the ranks of a group agree on when it is created, whatever they run on.
//
// Every rank states its options; ranks that differ where they must not get an error that names both
// values, limits are taken as the minimum over ranks. The plan never changes afterwards, so a
// decision made from it and from a launch's shape is the same on all ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/environment_variables.h"
#include "base/strong_id.h"
#include "comm/protocol.h"
#include "comm/rank_exchange.h"

namespace stoker::comm {

// Counts the launches of a group, modulo 2^32; the wire carries it as a number.
using Epoch = StrongId<struct EpochTag, uint32_t>;
// Counts the resets of a group, from 0.
using Generation = StrongId<struct GenerationTag, uint32_t>;

struct GroupOptions {
  std::string name = "stoker";  // 1 to 40 of [a-zA-Z0-9_-]; the same on all ranks
  int32_t capacity = 128;       // most tokens of a launch
  int32_t hidden_max = 7168;    // largest hidden size of a launch
  // Most tokens of a call; those above `capacity` go through NCCL. 0: none do. The CPU has no NCCL.
  int32_t nccl_tokens_max = 0;
  // Go on without NCCL where it cannot be had; otherwise that is an error on all ranks.
  bool nccl_optional = false;
  absl::Duration setup_timeout = absl::Seconds(60);
  // Deadlines of a launch; unset means the defaults of comm/protocol.h or STOKER_TIMEOUT_MS.
  absl::Duration timeout = absl::ZeroDuration();
  absl::Duration startup_timeout = absl::ZeroDuration();
  // The epoch of the first launch. Tests start shortly before it wraps.
  uint32_t first_epoch = 2;
};

struct GroupPlan {
  std::string name;
  std::string nonce;  // 16 hex digits of rank 0: two groups of one name have different ones
  int32_t rank = 0;
  int32_t world = 0;
  WorkspaceLayout layout;
  int64_t timeout_ns = 0;
  int64_t startup_timeout_ns = 0;
  uint32_t first_epoch = 0;

  // 0: there is no NCCL. The same on all ranks, so that they choose the same way from the number of
  // tokens alone, and a captured graph never changes it.
  int32_t nccl_tokens_max = 0;
  std::string nccl_refusal;  // why there is none although it was asked for

  int32_t tokens_max() const { return std::max(layout.capacity, nccl_tokens_max); }
  // Which way a call of `tokens` <= tokens_max() goes.
  bool GoesToNccl(int32_t tokens) const { return tokens > layout.capacity; }
  int32_t hidden_max() const { return layout.stride * kPacketElements; }
  // Of this group's shared memory: "stoker_<name>_<nonce>_<what>".
  std::string SharedName(const std::string& what) const;
  std::string ToString() const;
};

// Collective over `exchange`. InvalidArgument for options out of range (before any rank is met),
// FailedPrecondition where ranks disagree, DeadlineExceeded naming ranks that did not arrive.
absl::StatusOr<GroupPlan> AgreeOnPlan(const GroupOptions& options,
                                      const EnvironmentVariables& environment,
                                      RankExchange& exchange);

// The header of a workspace of this plan, before its first launch and after a Reset.
Control MakeControl(const GroupPlan& plan, Epoch first, Generation generation);

// FailedPrecondition if `seen`, read from the workspace that was mapped as rank `peer`'s, is not
// what MakeControl(plan, ...) of this generation put there: another group's memory, or none.
absl::Status CheckControl(const Control& seen, const GroupPlan& plan, Generation generation,
                          int peer);

}  // namespace stoker::comm
