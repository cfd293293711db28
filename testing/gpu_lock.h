// One GPU test at a time on a machine: two that share a GPU would take each other's SMs, and a
// launch that waits for ranks which cannot start ends at its deadline.
//
// A file lock, so that it holds between processes and build trees and goes with its owner, however
// that ends. Nothing is locked where there is no NVIDIA device.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"

namespace stoker::testing {

class GpuLock {
 public:
  // kDeadlineExceeded names the lock file if another test holds it for longer than `timeout`.
  static absl::StatusOr<GpuLock> Acquire(absl::Duration timeout);
  // The same with a lock file of the caller's, whatever the machine has.
  static absl::StatusOr<GpuLock> AcquireFile(const std::string& path, absl::Duration timeout);

 private:
  UniqueFd file_;
};

}  // namespace stoker::testing
