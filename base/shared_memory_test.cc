#include "base/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "testing/unique_name.h"

namespace stoker {
namespace {

using stoker::testing::UniqueName;

TEST(SharedMemory, TwoMappingsSeeTheSameBytes) {
  const std::string name = UniqueName("same");
  auto created = SharedMemory::Create(name, 4096);
  ASSERT_TRUE(created.ok()) << created.status();
  auto opened = SharedMemory::Open(name, 4096);
  ASSERT_TRUE(opened.ok()) << opened.status();
  std::memcpy(created->data(), "hello", 6);
  EXPECT_STREQ(static_cast<const char*>(opened->data()), "hello");
}

TEST(SharedMemory, ASecondCreatorIsRefusedAndTheNameGoesWithTheFirst) {
  const std::string name = UniqueName("twice");
  {
    auto created = SharedMemory::Create(name, 4096);
    ASSERT_TRUE(created.ok());
    EXPECT_EQ(SharedMemory::Create(name, 4096).status().code(), absl::StatusCode::kAlreadyExists);
    SharedMemory moved = std::move(*created);
    EXPECT_TRUE(SharedMemory::Open(name, 4096).ok());
  }
  EXPECT_EQ(SharedMemory::Open(name, 4096).status().code(), absl::StatusCode::kNotFound);
}

TEST(SharedMemory, AnotherSizeIsRefusedWithBothSizes) {
  const std::string name = UniqueName("size");
  auto created = SharedMemory::Create(name, 4096);
  ASSERT_TRUE(created.ok());
  const absl::Status status = SharedMemory::Open(name, 8192).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("4096"), std::string::npos) << status;
  EXPECT_NE(status.message().find("8192"), std::string::npos) << status;
}

TEST(SharedMemory, AFullFileSystemIsAStatusAndLeavesNothing) {
  const std::string name = UniqueName("full");
  const absl::Status status = SharedMemory::Create(name, int64_t{1} << 50).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(status.message().find("/dev/shm"), std::string::npos) << status;
  EXPECT_EQ(SharedMemory::Open(name, 4096).status().code(), absl::StatusCode::kNotFound);
}

class OutOfRange : public ::testing::TestWithParam<int64_t> {};

TEST_P(OutOfRange, IsRefusedByEveryCallAndNamed) {
  const std::string name = UniqueName("range");
  for (const absl::Status& status : {SharedMemory::Create(name, GetParam()).status(),
                                     SharedMemory::Open(name, GetParam()).status(),
                                     SharedMemory::OpenForReading(name, GetParam()).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(status.message().find(std::to_string(GetParam())), std::string::npos) << status;
  }
}

INSTANTIATE_TEST_SUITE_P(Bytes, OutOfRange, ::testing::Values(0, -1, INT64_MIN));

TEST(SharedMemory, PagesAreReservedAtCreationForTheOwnerAlone) {
  const std::string name = UniqueName("pages");
  constexpr int64_t kBytes = 1 << 20;
  auto created = SharedMemory::Create(name, kBytes);
  ASSERT_TRUE(created.ok()) << created.status();
  struct stat info {};
  ASSERT_EQ(stat(("/dev/shm/" + name).c_str(), &info), 0);
  EXPECT_GE(info.st_blocks * 512, kBytes);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(SharedMemory, AnUnlinkedSegmentStaysMappedAndItsNameIsFree) {
  const std::string name = UniqueName("unlinked");
  auto first = SharedMemory::Create(name, 4096);
  ASSERT_TRUE(first.ok());
  first->Unlink();
  std::memcpy(first->data(), "still here", 11);
  auto second = SharedMemory::Create(name, 4096);
  ASSERT_TRUE(second.ok()) << second.status();
  first->Unlink();  // must not take away the name that is another segment's now
  EXPECT_TRUE(SharedMemory::Open(name, 4096).ok());
  EXPECT_STREQ(static_cast<const char*>(first->data()), "still here");
}

TEST(SharedMemory, ASegmentOfAnotherUserIsRefusedWithBothUsers) {
  const uid_t self = geteuid();
  constexpr uid_t kOther = 65534;
  const std::string name = UniqueName("foreign");
  if (seteuid(kOther) != 0) GTEST_SKIP() << "cannot become another user: needs CAP_SETUID";
  auto foreign = SharedMemory::Create(name, 4096);
  ASSERT_EQ(seteuid(self), 0);
  ASSERT_TRUE(foreign.ok()) << foreign.status();
  const absl::Status status = SharedMemory::Open(name, 4096).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find(std::to_string(kOther)), std::string::npos) << status;
}

// Runs `body` in a child made by fork, which ends by `_exit`, without destructors, or as it
// returns.
int InChild(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(SharedMemory, AChildsCopyDoesNotTakeItsParentsNameAway) {
  const std::string name = UniqueName("forked");
  auto created = SharedMemory::Create(name, 4096);
  ASSERT_TRUE(created.ok());
  EXPECT_EQ(InChild([&] { created = absl::UnknownError("destroyed"); }), 0);
  EXPECT_TRUE(SharedMemory::Open(name, 4096).ok());
}

TEST(SharedMemory, NamesOfTheDeadAreRemovedAndNoOthers) {
  const std::string prefix = UniqueName("swept");
  auto alive = SharedMemory::Create(prefix + "_alive", 4096);
  ASSERT_TRUE(alive.ok());
  EXPECT_EQ(InChild([&] {
              auto dead = SharedMemory::Create(prefix + "_dead", 4096);
              auto shared = SharedMemory::Create(prefix + "_shared", 4096);
              _exit(dead.ok() && shared.ok() ? 0 : 1);
            }),
            0);
  auto kept = SharedMemory::Open(prefix + "_shared", 4096);  // another member lives on
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(SharedMemory::RemoveAbandoned(prefix), 1);
  EXPECT_TRUE(SharedMemory::Open(prefix + "_alive", 4096).ok());
  EXPECT_TRUE(SharedMemory::Open(prefix + "_shared", 4096).ok());
  EXPECT_EQ(SharedMemory::Open(prefix + "_dead", 4096).status().code(),
            absl::StatusCode::kNotFound);
  kept = absl::UnknownError("gone too");
  EXPECT_EQ(SharedMemory::RemoveAbandoned(prefix), 1);
}

TEST(SharedMemory, ASweepNeverTakesWhatIsBeingMade) {
  const std::string prefix = UniqueName("raced");
  std::atomic<bool> done{false};
  std::thread sweeper([&] {
    while (!done) SharedMemory::RemoveAbandoned(prefix);
  });
  for (int i = 0; i < 2000; ++i) {
    auto made = SharedMemory::Create(prefix, 4096);
    ASSERT_TRUE(made.ok()) << made.status();
    ASSERT_TRUE(SharedMemory::Open(prefix, 4096).ok()) << "taken in round " << i;
  }
  done = true;
  sweeper.join();
}

TEST(SharedMemory, ABadNameIsRefused) {
  EXPECT_EQ(SharedMemory::Create(std::string(201, 'x'), 4096).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SharedMemory::Create("a/b", 4096).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SharedMemory::Create("", 4096).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace stoker
