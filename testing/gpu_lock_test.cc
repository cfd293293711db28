#include "testing/gpu_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace stoker::testing {
namespace {

std::string LockPath() { return absl::StrCat(::testing::TempDir(), "/gpu.lock"); }

TEST(GpuLock, TheSecondHolderWaitsAndIsToldWhoseFileItIs) {
  auto first = GpuLock::AcquireFile(LockPath(), absl::Seconds(1));
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = GpuLock::AcquireFile(LockPath(), absl::Milliseconds(200));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kDeadlineExceeded) << second.status();
  EXPECT_NE(second.status().message().find(LockPath()), std::string::npos) << second.status();
  { GpuLock dropped = std::move(*first); }
  const auto third = GpuLock::AcquireFile(LockPath(), absl::Milliseconds(200));
  EXPECT_TRUE(third.ok()) << third.status();
}

TEST(GpuLock, GoesWithItsHolderHoweverThatEnds) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto lock = GpuLock::AcquireFile(LockPath(), absl::Seconds(5));
    const char byte = lock.ok() ? 1 : 0;
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char locked = 0;
  ASSERT_EQ(read(ready[0], &locked, 1), 1);
  EXPECT_EQ(locked, 1);
  EXPECT_FALSE(GpuLock::AcquireFile(LockPath(), absl::Milliseconds(100)).ok());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const auto after = GpuLock::AcquireFile(LockPath(), absl::Seconds(1));
  EXPECT_TRUE(after.ok()) << after.status();
  close(ready[0]);
  close(ready[1]);
}

TEST(GpuLock, AFileThatCannotBeMadeIsAnError) {
  const auto lock = GpuLock::AcquireFile("/nonexistent/gpu.lock", absl::Seconds(1));
  EXPECT_FALSE(lock.ok());
  EXPECT_NE(lock.status().message().find("/nonexistent/gpu.lock"), std::string::npos);
}

}  // namespace
}  // namespace stoker::testing
