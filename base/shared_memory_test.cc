#include "base/shared_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>

namespace stoker {
namespace {

std::string UniqueName(const char* what) {
  return "stoker_test_" + std::to_string(getpid()) + "_" + what;
}

TEST(SharedMemory, TwoMappingsSeeTheSameBytes) {
  auto created = SharedMemory::Create(UniqueName("same"), 4096);
  ASSERT_TRUE(created.ok()) << created.status();
  auto opened = SharedMemory::Open(UniqueName("same"), 4096);
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
  auto created = SharedMemory::Create(UniqueName("size"), 4096);
  ASSERT_TRUE(created.ok());
  const absl::Status status = SharedMemory::Open(UniqueName("size"), 8192).status();
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

TEST(SharedMemory, ABadNameIsRefused) {
  EXPECT_EQ(SharedMemory::Create("a/b", 4096).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SharedMemory::Create("", 4096).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace stoker
