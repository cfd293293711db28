// Without a GPU every rank is told so at once, with what to look for.
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "absl/strings/match.h"
#include "comm/cuda_communicator.h"
#include "comm/thread_exchange.h"

namespace stoker::comm {
namespace {

TEST(NoGpu, IsAnErrorOfEveryRankThatSaysWhatToLookFor) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  auto exchanges = MakeThreadExchanges(2);
  absl::Status statuses[2];
  const auto create = [&](int rank) {
    statuses[rank] = CudaCommunicator::Create({}, {}, *exchanges[rank]).status();
  };
  std::thread other(create, 1);
  create(0);
  other.join();
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "does CUDA_VISIBLE_DEVICES show it?"))
        << status;
  }
}

}  // namespace
}  // namespace stoker::comm
