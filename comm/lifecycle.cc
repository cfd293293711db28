#include "comm/lifecycle.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace stoker::comm {

absl::Status Lifecycle::Refusal() const {
  switch (state_) {
    case State::kOpen:
      return absl::OkStatus();
    case State::kResetting:
      return absl::FailedPreconditionError("the group is being reset by another thread");
    case State::kOver:
      return absl::FailedPreconditionError(
          absl::StrCat("the group is over, its reset failed: ", over_.message(),
                       ". Remedy: close it and create another."));
    case State::kClosing:
    case State::kClosed:
      return absl::FailedPreconditionError("the communicator is closed");
  }
  return absl::InternalError("unknown state of a communicator");
}

absl::Status Lifecycle::CheckProcess() const {
  const pid_t here = getpid();
  if (here == process_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "this communicator is of process ", process_, "; process ", here,
      " was forked from it and cannot use it. Remedy: fork first, then create communicators."));
}

absl::Status Lifecycle::Check() const {
  STOKER_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard<std::mutex> lock(mutex_);
  return Refusal();
}

absl::Status Lifecycle::BeginLaunch() {
  STOKER_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == State::kOpen) ++launches_;
  return Refusal();
}

void Lifecycle::EndLaunch() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (--launches_ == 0) drained_.notify_all();
}

absl::Status Lifecycle::Drain(absl::Duration timeout) {
  STOKER_RETURN_IF_ERROR(CheckProcess());
  std::unique_lock<std::mutex> lock(mutex_);
  // Bounded, as adding a longer time to the clock may overflow.
  const auto limit = absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24)));
  if (drained_.wait_for(lock, limit, [this] { return launches_ == 0; })) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      launches_, " launches of this rank did not end within ", absl::FormatDuration(timeout)));
}

absl::Status Lifecycle::WhileMapped(Action action) {
  STOKER_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard<std::mutex> lock(mutex_);
  return state_ == State::kClosed ? Refusal() : action();
}

absl::Status Lifecycle::Stop(Action stop) {
  STOKER_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == State::kClosed) return Refusal();
  if (state_ != State::kResetting) return stop();
  stop_put_off_ = true;
  return absl::OkStatus();
}

absl::Status Lifecycle::BeginReset(Action stop) {
  STOKER_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ != State::kOpen) return Refusal();
  state_ = State::kResetting;
  return stop();
}

absl::Status Lifecycle::EndReset(const absl::Status& result, Action stop) {
  std::lock_guard<std::mutex> lock(mutex_);
  over_ = result;
  if (state_ == State::kResetting) state_ = result.ok() ? State::kOpen : State::kOver;
  absl::Status stopped;
  if (!result.ok() || stop_put_off_) stopped = stop();
  stop_put_off_ = false;
  return result.ok() ? stopped : result;
}

absl::StatusOr<bool> Lifecycle::BeginClose() {
  STOKER_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == State::kClosing || state_ == State::kClosed) return false;
  state_ = State::kClosing;
  return true;
}

void Lifecycle::EndClose() {
  std::lock_guard<std::mutex> lock(mutex_);
  state_ = State::kClosed;
}

bool Lifecycle::closed() const {
  if (!CheckProcess().ok()) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  return state_ == State::kClosing || state_ == State::kClosed;
}

absl::Status Lifecycle::over() const {
  STOKER_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard<std::mutex> lock(mutex_);
  return state_ == State::kOver ? Refusal() : absl::OkStatus();
}

}  // namespace stoker::comm
