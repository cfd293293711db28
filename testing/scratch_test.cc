#include "testing/scratch.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "base/bounded_wait.h"
#include "base/shared_memory.h"
#include "testing/unique_name.h"

namespace stoker::testing {
namespace {

bool Gone(const std::string& path) {
  return WaitUntil([&] { return !std::filesystem::exists(path); },
                   Deadline(Clock::Monotonic(), absl::Seconds(20)), "its removal")
      .ok();
}

TEST(Scratch, IsRemovedWithItsObject) {
  std::string path;
  {
    const auto folder = Scratch::Folder("stoker_scratch_test");
    ASSERT_TRUE(folder.ok()) << folder.status();
    path = folder->path();
    std::ofstream(path + "/file") << "text";
    EXPECT_TRUE(std::filesystem::exists(path + "/file"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

// A process with a folder, a segment and a child, all of which wait for the signal.
void HoldUntilKilled(const std::string& segment, int told) {
  const auto folder = Scratch::Folder("stoker_scratch_test");
  const auto segments = Scratch::Segments(segment);
  const auto memory = SharedMemory::Create(segment + "_0", 4096);
  if (!folder.ok() || !segments.ok() || !memory.ok()) _exit(3);
  std::ofstream(folder->path() + "/file") << "text";
  const pid_t child = fork();
  alarm(60);
  if (child > 0 && write(told, folder->path().data(), folder->path().size()) < 0) _exit(4);
  for (;;) pause();
}

class ScratchOfAKilledProcess : public ::testing::TestWithParam<int> {};

TEST_P(ScratchOfAKilledProcess, IsRemovedOnceItsChildrenAreGoneToo) {
  const std::string segment = UniqueName("stoker_scratch");
  const std::string shared = "/dev/shm/" + segment + "_0";
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t process = fork();
  ASSERT_GE(process, 0);
  if (process == 0) {
    setpgid(0, 0);
    HoldUntilKilled(segment, ends[1]);
  }
  char path[256] = {};
  ASSERT_GT(read(ends[0], path, sizeof(path) - 1), 0);
  ASSERT_TRUE(std::filesystem::exists(shared));
  ASSERT_EQ(kill(process, GetParam()), 0);
  ASSERT_EQ(waitpid(process, nullptr, 0), process);
  // Its child still uses both.
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_TRUE(std::filesystem::exists(shared));
  ASSERT_EQ(kill(-process, GetParam()), 0);
  EXPECT_TRUE(Gone(path)) << path;
  EXPECT_TRUE(Gone(shared)) << shared;
}

INSTANTIATE_TEST_SUITE_P(Signals, ScratchOfAKilledProcess,
                         ::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGKILL));

}  // namespace
}  // namespace stoker::testing
