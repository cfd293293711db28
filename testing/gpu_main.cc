// The main function of GPU tests: holds the lock while they run; one that cannot be had fails them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <utility>

#include "testing/gpu_lock.h"

namespace stoker::testing {
namespace {

class LockEnvironment : public ::testing::Environment {
 public:
  void SetUp() override {
    auto lock = GpuLock::Acquire(absl::Minutes(10));
    ASSERT_TRUE(lock.ok()) << lock.status();
    lock_ = std::move(*lock);
  }
  void TearDown() override { lock_.reset(); }

 private:
  std::optional<GpuLock> lock_;
};

}  // namespace

}  // namespace stoker::testing

int main(int argc, char** argv) {
  // A kernel that is loaded when it is first launched may wait for one that waits for it.
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  ::testing::InitGoogleTest(&argc, argv);
  ::testing::AddGlobalTestEnvironment(new stoker::testing::LockEnvironment);
  return RUN_ALL_TESTS();
}
