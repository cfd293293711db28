// Which calls a member of a group allows at the moment, when they come from different threads.
//
//   open --Reset--> resetting --> open, or over if a member did not come
//   any  --Close--> closing   --> closed: from here on nothing touches the group's memory
//
// A child made by fork has a copy of the communicator and none of its rights: the group is its
// parent's, threads of which may have held the lock at that moment. There everything is refused,
// and the destructor touches nothing.
//
// A communicator owns one. Launches are counted where they run in the calling thread, so that Reset
// and Close can wait for them before the memory under them is wiped or taken away. Thread-safe.
// Errors: kFailedPrecondition says which of the states above refuses the call, or that the process
// is such a child.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <mutex>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace stoker::comm {

class Lifecycle {
 public:
  // Touches the group's memory, briefly: it runs under this object's lock.
  using Action = absl::FunctionRef<absl::Status()>;

  // FailedPrecondition in a child made by fork. Never waits.
  absl::Status CheckProcess() const;
  // OK where the member may launch.
  absl::Status Check() const;
  // Only an open member launches. EndLaunch must follow a BeginLaunch that returned OK.
  absl::Status BeginLaunch();
  void EndLaunch();
  // Returns when no launch is counted.
  absl::Status Drain(absl::Duration timeout);

  // Runs `action` unless the member is closed.
  absl::Status WhileMapped(Action action);
  // The same for what stops the group, but during a reset it is put off until EndReset: in between
  // some ranks have wiped what it sets, and the group would be stopped by halves.
  absl::Status Stop(Action stop);

  // Refuses launches from now on and runs `stop`.
  absl::Status BeginReset(Action stop);
  // Opens the member again, or, if `result` is an error, ends it for good: then, and if a Stop came
  // during the reset, it runs `stop`. Returns `result`.
  absl::Status EndReset(const absl::Status& result, Action stop);

  // False if another Close was here before.
  absl::StatusOr<bool> BeginClose();
  void EndClose();
  // Nothing of the group is this process's to stop or free: it is closed, or its parent's.
  bool closed() const;
  // Why the group is over, or that it is the parent's; else OK.
  absl::Status over() const;

 private:
  enum class State { kOpen, kResetting, kOver, kClosing, kClosed };
  absl::Status Refusal() const;

  // Not absl::Mutex: ThreadSanitizer does not see the order that Debian's build of it makes.
  mutable std::mutex mutex_;
  const pid_t process_ = getpid();
  std::condition_variable drained_;
  State state_ = State::kOpen;
  absl::Status over_;
  int launches_ = 0;
  bool stop_put_off_ = false;
};

}  // namespace stoker::comm
