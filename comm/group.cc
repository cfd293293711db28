#include "comm/group.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace stoker::comm {
namespace {

constexpr int32_t kNcclTokensMax = 1 << 20;

// What travels. Fixed-size fields, so that a rank of another build is recognised and not misread.
struct Proposal {
  uint32_t protocol_version;
  int32_t world;
  int32_t capacity;
  int32_t stride;
  uint32_t first_epoch;
  int32_t nccl_tokens_max;
  int64_t timeout_ns;
  int64_t startup_timeout_ns;
  uint64_t nonce;
  char name[48];
};

absl::Status CheckOptions(const GroupOptions& options, int world) {
  if (world < 1 || world > kWorldMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("world size ", world, ": 1 to ", kWorldMax,
                     " ranks are supported; use NCCL for larger groups"));
  }
  if (options.name.empty() || options.name.size() > 40 ||
      !std::all_of(options.name.begin(), options.name.end(), [](unsigned char c) {
        return absl::ascii_isalnum(c) || c == '_' || c == '-';
      })) {
    return absl::InvalidArgumentError(
        absl::StrCat("group name \"", options.name,
                     "\" must have 1 to 40 characters of [a-zA-Z0-9_-]; choose another"));
  }
  if (options.capacity < 1 || options.capacity > 65536) {
    return absl::InvalidArgumentError(
        absl::StrCat("capacity ", options.capacity,
                     ": 1 to 65536 tokens are supported; larger calls go through NCCL"));
  }
  if (options.hidden_max < kPacketElements || options.hidden_max > kHiddenMax ||
      options.hidden_max % kPacketElements != 0) {
    return absl::InvalidArgumentError(absl::StrCat("largest hidden size ", options.hidden_max,
                                                   ": a multiple of 8 from 8 to ", kHiddenMax,
                                                   " is supported; round it up"));
  }
  if (options.nccl_tokens_max < 0 || options.nccl_tokens_max > kNcclTokensMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("most tokens through NCCL ", options.nccl_tokens_max, ": 0 (none) to ",
                     kNcclTokensMax, " are supported; split larger calls"));
  }
  if (options.setup_timeout < absl::Milliseconds(1) || options.setup_timeout > absl::Hours(24)) {
    return absl::InvalidArgumentError(
        absl::StrCat("set-up timeout of ", absl::FormatDuration(options.setup_timeout),
                     ": 1 ms to 24 h are supported; a minute is the default"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Deadline(absl::Duration option, const EnvironmentVariables& environment,
                                 int64_t default_ms) {
  int64_t ms = environment.timeout_ms.value_or(default_ms);
  if (option != absl::ZeroDuration()) ms = absl::ToInt64Milliseconds(option);
  if (ms < 1 || ms > kTimeoutMsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout of ", ms, " ms: 1 to ", kTimeoutMsMax,
                     " (24 h) are supported; leave it out for the default"));
  }
  return ms * 1'000'000;
}

absl::Status Differ(const char* what, int rank, int64_t mine, int peer, int64_t theirs) {
  return absl::FailedPreconditionError(absl::StrCat(what, " differs: ", mine, " on rank ", rank,
                                                    ", ", theirs, " on rank ", peer,
                                                    "; all ranks must use the same"));
}

absl::Status CheckEqual(const Proposal& mine, int rank, const Proposal& theirs, int peer) {
  if (mine.protocol_version != theirs.protocol_version) {
    return Differ("protocol version", rank, mine.protocol_version, peer, theirs.protocol_version);
  }
  if (mine.world != theirs.world) return Differ("world size", rank, mine.world, peer, theirs.world);
  if (mine.first_epoch != theirs.first_epoch) {
    return Differ("first epoch", rank, mine.first_epoch, peer, theirs.first_epoch);
  }
  if (mine.stride != theirs.stride) {
    return Differ("largest hidden size", rank, mine.stride * kPacketElements, peer,
                  theirs.stride * kPacketElements);
  }
  if (std::memcmp(mine.name, theirs.name, sizeof(mine.name)) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "group name differs: \"", mine.name, "\" on rank ", rank, ", \"",
        std::string(theirs.name, strnlen(theirs.name, sizeof(theirs.name))), "\" on rank ", peer));
  }
  return absl::OkStatus();
}

}  // namespace

std::string GroupPlan::SharedName(const std::string& what) const {
  return absl::StrCat("stoker_", name, "_", nonce, "_", what);
}

std::string GroupPlan::ToString() const {
  std::string nccl;
  if (nccl_tokens_max > 0) nccl = absl::StrCat(", NCCL up to ", nccl_tokens_max, " tokens");
  if (!nccl_refusal.empty()) nccl = absl::StrCat(", no NCCL (", nccl_refusal, ")");
  return absl::StrFormat(
      "group %s: rank %d of %d, capacity %d tokens, hidden up to %d, workspace %d bytes, timeout "
      "%d ms "
      "(%d ms for the first %d launches)%s",
      name, rank, world, layout.capacity, hidden_max(), layout.bytes(), timeout_ns / 1'000'000,
      startup_timeout_ns / 1'000'000, kStartupEpochs, nccl);
}

absl::StatusOr<GroupPlan> AgreeOnPlan(const GroupOptions& options,
                                      const EnvironmentVariables& environment,
                                      RankExchange& exchange) {
  STOKER_RETURN_IF_ERROR(CheckOptions(options, exchange.world()));
  STOKER_ASSIGN_OR_RETURN(const int64_t timeout_ns,
                          Deadline(options.timeout, environment, kDefaultTimeoutMs));
  STOKER_ASSIGN_OR_RETURN(const int64_t startup_ns,
                          Deadline(options.startup_timeout, environment, kDefaultStartupTimeoutMs));
  Proposal mine{};
  mine.protocol_version = kProtocolVersion;
  mine.world = exchange.world();
  mine.capacity = options.capacity;
  mine.stride = options.hidden_max / kPacketElements;
  mine.first_epoch = options.first_epoch;
  mine.nccl_tokens_max = options.nccl_tokens_max;
  mine.timeout_ns = timeout_ns;
  mine.startup_timeout_ns = startup_ns;
  if (getrandom(&mine.nonce, sizeof(mine.nonce), 0) != sizeof(mine.nonce)) {
    return ErrnoStatus(errno, "getrandom");
  }
  std::copy(options.name.begin(), options.name.end(), mine.name);

  const absl::string_view bytes(reinterpret_cast<const char*>(&mine), sizeof(mine));
  STOKER_ASSIGN_OR_RETURN(const std::vector<std::string> messages,
                          exchange.AllGather("agreeing on the plan", bytes, options.setup_timeout));
  uint64_t nonce = 0;
  for (int peer = 0; peer < exchange.world(); ++peer) {
    Proposal theirs;
    if (messages[peer].size() != sizeof(theirs)) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", peer, " sent a plan of ", messages[peer].size(), " bytes where ",
                       sizeof(theirs), " are expected; do all ranks run the same build?"));
    }
    std::memcpy(&theirs, messages[peer].data(), sizeof(theirs));
    STOKER_RETURN_IF_ERROR(CheckEqual(mine, exchange.rank(), theirs, peer));
    mine.capacity = std::min(mine.capacity, theirs.capacity);
    mine.nccl_tokens_max = std::min(mine.nccl_tokens_max, theirs.nccl_tokens_max);
    mine.timeout_ns = std::min(mine.timeout_ns, theirs.timeout_ns);
    mine.startup_timeout_ns = std::min(mine.startup_timeout_ns, theirs.startup_timeout_ns);
    if (peer == 0) nonce = theirs.nonce;
  }
  GroupPlan plan;
  plan.name = options.name;
  plan.nonce = absl::StrFormat("%016x", nonce);
  plan.rank = exchange.rank();
  plan.world = exchange.world();
  plan.layout = {.world = mine.world, .capacity = mine.capacity, .stride = mine.stride};
  plan.timeout_ns = mine.timeout_ns;
  plan.startup_timeout_ns = mine.startup_timeout_ns;
  plan.first_epoch = mine.first_epoch;
  if (mine.nccl_tokens_max > mine.capacity) plan.nccl_tokens_max = mine.nccl_tokens_max;
  return plan;
}

Control MakeControl(const GroupPlan& plan, Epoch first, Generation generation) {
  Control control{};
  control.magic = kWorkspaceMagic;
  control.capacity = plan.layout.capacity;
  control.stride = plan.layout.stride;
  control.epoch = control.first_epoch = first.value();
  control.generation = generation.value();
  control.timeout_ns = plan.timeout_ns;
  control.startup_timeout_ns = plan.startup_timeout_ns;
  return control;
}

absl::Status CheckControl(const Control& seen, const GroupPlan& plan, Generation generation,
                          int peer) {
  if (seen.magic != kWorkspaceMagic) {
    return absl::FailedPreconditionError(absl::StrCat(
        "what was mapped as the workspace of rank ", peer, " starts with ", absl::Hex(seen.magic),
        " where ", absl::Hex(kWorkspaceMagic), " is expected; do all ranks run the same build?"));
  }
  if (seen.capacity != plan.layout.capacity || seen.stride != plan.layout.stride ||
      seen.generation != generation.value()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "what was mapped as the workspace of rank %d is of another group: capacity %d, stride %d, "
        "generation %d; expected %d, %d, %d",
        peer, seen.capacity, seen.stride, seen.generation, plan.layout.capacity, plan.layout.stride,
        generation.value()));
  }
  return absl::OkStatus();
}

}  // namespace stoker::comm
