// The main function of GPU tests.
#include <gtest/gtest.h>

#include "testing/gpu_lock.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  stoker::testing::LockGpuForThisProgram();
  return RUN_ALL_TESTS();
}
