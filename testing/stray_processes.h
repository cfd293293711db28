// Finds and ends what the children of this process leave behind.
//
// While an object lives, this process adopts the orphans of its descendants
// (PR_SET_CHILD_SUBREAPER) in place of init, so that also a grandchild in a session of its own can
// be found. One at a time per process.
#pragma once

#include <sys/types.h>

#include <set>

#include "base/clock.h"

namespace stoker::testing {

class StrayProcesses {
 public:
  StrayProcesses();
  ~StrayProcesses();
  StrayProcesses(const StrayProcesses&) = delete;
  StrayProcesses& operator=(const StrayProcesses&) = delete;

  // Kills and reaps every child, and in turn its children, that was not there when the object was
  // made. False if one is still there at the deadline.
  bool KillAndReap(const Deadline& deadline) const;

 private:
  std::set<pid_t> known_;
  int was_subreaper_ = 0;
};

}  // namespace stoker::testing
