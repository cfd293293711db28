// Stops the groups of a process that is asked to end (SIGTERM), so that its peers do not wait for
// it until their deadline.
//
// While at least one object lives, SIGTERM runs all their actions, at most a second, and is then
// delivered again to whoever handled it before: by default it ends the process. A process that
// ignores SIGTERM goes on ignoring it; one that installs a handler later takes ours away with it.
// Not inherited by fork. Thread-safe; the actions run in a thread of their own.
#pragma once

#include <functional>

namespace stoker::comm {

class StopAtTermination {
 public:
  explicit StopAtTermination(std::function<void()> stop);
  // Waits for the action if it runs at the moment.
  ~StopAtTermination();
  StopAtTermination(const StopAtTermination&) = delete;
  StopAtTermination& operator=(const StopAtTermination&) = delete;

 private:
  int id_;
};

}  // namespace stoker::comm
