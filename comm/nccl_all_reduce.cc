#include "comm/nccl_all_reduce.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bounded_wait.h"
#include "base/nccl_status.h"
#include "base/status.h"
#include "comm/nccl_library.h"

namespace stoker::comm {
namespace {

// For queueing a call, which needs no peer once the ranks are connected.
constexpr absl::Duration kQueueTimeout = absl::Seconds(60);

}  // namespace

absl::Status NcclAllReduce::Connect(RankExchange& exchange, absl::Duration timeout) {
  Abort();
  const absl::StatusOr<std::string> identity = Identity();
  STOKER_RETURN_IF_ERROR(
      exchange.AllSucceeded("choosing NCCL's identity", identity.status(), timeout));
  STOKER_ASSIGN_OR_RETURN(const std::vector<std::string> identities,
                          exchange.AllGather("exchanging NCCL's identity", *identity, timeout));
  const absl::Status connected =
      exchange.AllSucceeded("connecting NCCL", Init(identities[0], timeout), timeout);
  if (!connected.ok()) Abort();
  return connected;
}

absl::StatusOr<std::string> NcclAllReduce::Identity() const {
  if (rank_ != 0) return std::string();
  ncclUniqueId identity;
  STOKER_RETURN_IF_ERROR(StateOf(library_.get_unique_id(&identity), "ncclGetUniqueId"));
  return std::string(identity.internal, sizeof(identity.internal));
}

absl::Status NcclAllReduce::Init(const std::string& identity, absl::Duration timeout) {
  ncclUniqueId id;
  if (identity.size() != sizeof(id.internal)) {
    return absl::InternalError(
        absl::StrCat("rank 0 sent an NCCL identity of ", identity.size(), " bytes"));
  }
  std::memcpy(id.internal, identity.data(), sizeof(id.internal));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.version = std::min(static_cast<int>(config.version), library_.version());
  config.blocking = 0;  // a peer that does not come must not hold this thread
  int result = ncclSuccess;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    noticed_ = absl::OkStatus();
    result = library_.comm_init_rank_config(&comm_, world_, id, rank_, &config);
  }
  return Await(result, "ncclCommInitRankConfig", timeout);
}

absl::Status NcclAllReduce::StateOf(int result, const char* call) const {
  const char* words = result == ncclSuccess ? nullptr : library_.get_last_error(comm_);
  return NcclStatus(static_cast<NcclResult>(result), call, words == nullptr ? "" : words);
}

absl::Status NcclAllReduce::Await(int result, const char* call, absl::Duration timeout) {
  absl::Status state;
  const auto done = [&] {
    std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ == nullptr) {
      state = result == ncclSuccess || result == ncclInProgress
                  ? absl::AbortedError(absl::StrCat(call, ": NCCL was stopped on this rank"))
                  : StateOf(result, call);
      return true;
    }
    if (result == ncclSuccess || result == ncclInProgress) {
      ncclResult_t now = ncclSuccess;
      result = library_.comm_get_async_error(comm_, &now);
      if (result == ncclSuccess) result = now;
    }
    if (result == ncclInProgress) return false;
    state = StateOf(result, call);
    return true;
  };
  STOKER_RETURN_IF_ERROR(WaitUntil(done, Deadline(Clock::Monotonic(), timeout), call));
  return state;
}

absl::Status NcclAllReduce::Sum(const void* input, void* output, int64_t elements, WireType type,
                                cudaStream_t stream) {
  const ncclDataType_t data_type = type == WireType::kBf16 ? ncclBfloat16 : ncclFloat16;
  int result = ncclInProgress;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ != nullptr) {
      result = library_.all_reduce(input, output, static_cast<size_t>(elements), data_type, ncclSum,
                                   comm_, stream);
    }
  }
  return Await(result, "ncclAllReduce", kQueueTimeout);
}

absl::Status NcclAllReduce::Check() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (comm_ == nullptr || !noticed_.ok()) return noticed_;
  ncclResult_t now = ncclSuccess;
  const ncclResult_t asked = library_.comm_get_async_error(comm_, &now);
  if (asked != ncclSuccess) now = asked;
  if (now != ncclInProgress) noticed_ = StateOf(now, "NCCL");
  return noticed_;
}

void NcclAllReduce::Abort() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (comm_ == nullptr) return;
  library_.comm_abort(comm_);
  comm_ = nullptr;
}

}  // namespace stoker::comm
