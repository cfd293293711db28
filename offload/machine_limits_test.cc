#include "offload/machine_limits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace stoker::offload {
namespace {

class MachineLimitsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "/limits_" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    Write("/proc/meminfo", "MemTotal:       1000 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST_F(MachineLimitsTest, WithoutGroupsAffinityAndMemoryCount) {
  const MachineLimits limits = ReadMachineLimits(root_, 5);
  EXPECT_EQ(limits.cpus, 5);
  EXPECT_EQ(limits.memory_bytes, 1000u * 1024);
}

TEST_F(MachineLimitsTest, TheTightestGroupOfVersion2Counts) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  Write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  Write("/sys/fs/cgroup/a/memory.max", "70000\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  const MachineLimits limits = ReadMachineLimits(root_, 8);
  EXPECT_EQ(limits.cpus, 2) << "1.5 CPUs are two threads";
  EXPECT_EQ(limits.memory_bytes, 70000u);
}

TEST_F(MachineLimitsTest, Version1) {
  Write("/proc/self/cgroup", "3:cpu,cpuacct:/job\n2:memory:/job\n");
  Write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "300000\n");
  Write("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4096\n");
  const MachineLimits limits = ReadMachineLimits(root_, 8);
  EXPECT_EQ(limits.cpus, 3);
  EXPECT_EQ(limits.memory_bytes, 4096u);
}

TEST_F(MachineLimitsTest, AnUnlimitedQuotaIsNoneAndAffinityStillCounts) {
  Write("/proc/self/cgroup", "3:cpu:/\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(ReadMachineLimits(root_, 2).cpus, 2);
}

TEST(MachineLimits, OfThisProcess) {
  const MachineLimits limits = ReadMachineLimits();
  EXPECT_GE(limits.cpus, 1);
  EXPECT_LT(limits.memory_bytes, UINT64_MAX);
}

}  // namespace
}  // namespace stoker::offload
