// Sweeps of abandoned names that meet a segment between its creation and its lock: this program's
// shm_open runs what a test puts there as soon as a segment is made.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "base/shared_memory.h"
#include "base/unique_fd.h"
#include "testing/unique_name.h"

namespace stoker {
namespace {

std::function<void()> once_created;

int RealOpen(const char* name, int flags, mode_t mode) {
  static const auto real =
      reinterpret_cast<int (*)(const char*, int, mode_t)>(dlsym(RTLD_NEXT, "shm_open"));
  return real(name, flags, mode);
}

TEST(SharedMemorySweep, OneBetweenCreationAndLockCostsASecondSegmentAndNotTheName) {
  const std::string name = testing::UniqueName("between");
  int swept = 0;
  once_created = [&] { swept = SharedMemory::RemoveAbandoned(name); };
  auto made = SharedMemory::Create(name, 4096);
  EXPECT_EQ(swept, 1) << "the sweep did not meet it there";
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(SharedMemory::Open(name, 4096).ok());
  EXPECT_EQ(SharedMemory::RemoveAbandoned(name), 0);
}

// A signal whose handler does not restart system calls must not let the creator go on unlocked.
TEST(SharedMemorySweep, ASignalWhileTheSweepHoldsItsLockDoesNotLoseTheName) {
  struct sigaction handler {};
  handler.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGUSR1, &handler, nullptr), 0);
  const std::string name = testing::UniqueName("signal");
  const pthread_t creator = pthread_self();
  std::thread sweeper;
  once_created = [&] {
    UniqueFd swept(RealOpen(("/" + name).c_str(), O_RDONLY | O_CLOEXEC, 0));
    ASSERT_EQ(flock(swept.get(), LOCK_EX | LOCK_NB), 0);
    sweeper = std::thread([&name, creator, swept = std::move(swept)]() mutable {
      for (int i = 0; i < 20; ++i) {  // one of them comes while the creator waits for its lock
        absl::SleepFor(absl::Milliseconds(10));
        pthread_kill(creator, SIGUSR1);
      }
      shm_unlink(("/" + name).c_str());
      swept = UniqueFd();
    });
  };
  auto made = SharedMemory::Create(name, 4096);
  sweeper.join();
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(SharedMemory::Open(name, 4096).ok());
}

}  // namespace
}  // namespace stoker

extern "C" int shm_open(const char* name, int flags, mode_t mode) {
  const int fd = stoker::RealOpen(name, flags, mode);
  if (fd >= 0 && (flags & O_CREAT) != 0 && stoker::once_created) {
    std::exchange(stoker::once_created, nullptr)();
  }
  return fd;
}
