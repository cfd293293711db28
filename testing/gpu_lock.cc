#include "testing/gpu_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"

namespace stoker::testing {
absl::StatusOr<GpuLock> GpuLock::Acquire(absl::Duration timeout) {
  if (access("/dev/nvidiactl", F_OK) != 0) return GpuLock();
  return AcquireFile(absl::StrCat("/tmp/stoker-gpu-", geteuid(), ".lock"), timeout);
}

absl::StatusOr<GpuLock> GpuLock::AcquireFile(const std::string& path, absl::Duration timeout) {
  GpuLock lock;
  lock.file_ = UniqueFd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (lock.file_.get() < 0) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  const absl::Time deadline = absl::Now() + timeout;
  while (flock(lock.file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR)
      return ErrnoStatus(errno, absl::StrCat("locking ", path));
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("another GPU test has held ", path, " for ", absl::FormatDuration(timeout)));
    }
    absl::SleepFor(absl::Milliseconds(50));
  }
  return lock;
}

}  // namespace stoker::testing
