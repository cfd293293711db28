#include "base/unique_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <utility>

namespace stoker {
namespace {

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) != -1; }

int OpenNull() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

TEST(UniqueFd, ClosesOnceWhenTheLastOwnerGoes) {
  const int raw = OpenNull();
  ASSERT_GE(raw, 0);
  {
    UniqueFd first(raw);
    UniqueFd second(std::move(first));
    // None is left behind.
    EXPECT_EQ(first.get(), -1);  // NOLINT(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
    EXPECT_EQ(second.get(), raw);
    EXPECT_TRUE(IsOpen(raw));
  }
  EXPECT_FALSE(IsOpen(raw));
}

TEST(UniqueFd, AssignmentClosesTheOldOneAndSelfAssignmentDoesNothing) {
  UniqueFd fd(OpenNull());
  const int old = fd.get();
  const int next = OpenNull();
  fd = UniqueFd(next);
  EXPECT_FALSE(IsOpen(old));
  UniqueFd& same = fd;
  fd = std::move(same);
  EXPECT_EQ(fd.get(), next);
  EXPECT_TRUE(IsOpen(next));
}

}  // namespace
}  // namespace stoker
