// NCCL as far as no GPU is needed: finding it, its version, and waits that end, over a library of
// our own (comm/nccl_fake.cc).
#include "comm/nccl_all_reduce.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "comm/group.h"
#include "comm/nccl_library.h"
#include "comm/thread_exchange.h"

namespace stoker::comm {
namespace {

using ::testing::HasSubstr;

constexpr char kFake[] = "comm/libnccl_fake.so";

std::string FakePath() {
  return absl::StrCat(absl::NullSafeStringView(std::getenv("TEST_SRCDIR")), "/stoker/", kFake);
}

int FakeCount(const char* name) {
  void* library = dlopen(FakePath().c_str(), RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<int (*)()>(dlsym(library, name))();
}

class Nccl : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"FAKE_NCCL_VERSION", "FAKE_NCCL_INIT", "FAKE_NCCL_ERROR"}) {
      unsetenv(name);
    }
  }

  // Each rank connects in a thread of its own; what it returned.
  std::vector<absl::Status> ConnectAll(int world, absl::Duration timeout) {
    const auto library = NcclLibrary::Open(FakePath());
    EXPECT_TRUE(library.ok()) << library.status();
    const auto exchanges = MakeThreadExchanges(world);
    std::vector<absl::Status> connected(world);
    std::vector<std::thread> threads;
    ranks_.clear();
    for (int rank = 0; rank < world; ++rank) {
      ranks_.push_back(std::make_unique<NcclAllReduce>(**library, rank, world));
      NcclAllReduce* nccl = ranks_.back().get();
      threads.emplace_back(
          [&, rank, nccl] { connected[rank] = nccl->Connect(*exchanges[rank], timeout); });
    }
    for (std::thread& thread : threads) thread.join();
    return connected;
  }

  std::vector<std::unique_ptr<NcclAllReduce>> ranks_;
};

TEST_F(Nccl, AnAbsentLibraryIsNamedWithTheRemedy) {
  const auto library = NcclLibrary::Open("libnccl_that_is_not_there.so.2");
  EXPECT_EQ(library.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(library.status().message()),
              HasSubstr("libnccl_that_is_not_there.so.2 is neither loaded in this process nor"));
  EXPECT_THAT(std::string(library.status().message()), HasSubstr("LD_LIBRARY_PATH"));
}

TEST_F(Nccl, AnotherVersionIsNamedWithWhatIsNeeded) {
  for (const auto& [number, name] : {std::pair("21703", "2.17.3"), std::pair("30101", "3.1.1")}) {
    setenv("FAKE_NCCL_VERSION", number, 1);
    const auto library = NcclLibrary::Open(FakePath());
    EXPECT_EQ(library.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(library.status().message(), std::string("the NCCL of this process is ") + name +
                                              "; 2.18.1 or a later 2.x is needed");
  }
}

TEST_F(Nccl, ALibraryWithoutTheFunctionsIsNamed) {
  const auto library = NcclLibrary::Open("libm.so.6");
  EXPECT_THAT(std::string(library.status().message()), HasSubstr("no function ncclGetVersion"));
}

TEST_F(Nccl, RanksConnectAndSumAndAnAbortEndsIt) {
  for (const absl::Status& rank : ConnectAll(2, absl::Seconds(20))) ASSERT_TRUE(rank.ok()) << rank;
  const int before = FakeCount("FakeNcclCalls");
  EXPECT_TRUE(ranks_[0]->Sum(nullptr, nullptr, 8, WireType::kBf16, nullptr).ok());
  EXPECT_EQ(FakeCount("FakeNcclCalls"), before + 1);
  EXPECT_TRUE(ranks_[0]->Check().ok());
  const int aborts = FakeCount("FakeNcclAborts");
  ranks_[0]->Abort();
  ranks_[0]->Abort();
  EXPECT_EQ(FakeCount("FakeNcclAborts"), aborts + 1);
  EXPECT_EQ(ranks_[0]->Sum(nullptr, nullptr, 8, WireType::kBf16, nullptr).code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(FakeCount("FakeNcclCalls"), before + 1);
  EXPECT_TRUE(ranks_[1]->Check().ok());
}

TEST_F(Nccl, WhatNcclRefusesIsSaidInItsWordsOnAllRanks) {
  setenv("FAKE_NCCL_INIT", "refuse", 1);
  for (const absl::Status& rank : ConnectAll(2, absl::Seconds(20))) {
    EXPECT_THAT(std::string(rank.message()),
                HasSubstr("ncclInvalidUsage (Duplicate GPU detected)"));
  }
}

TEST_F(Nccl, ConnectingThatDoesNotEndIsGivenUpAndAborted) {
  const auto library = NcclLibrary::Open(FakePath());
  ASSERT_TRUE(library.ok()) << library.status();
  const int aborts = FakeCount("FakeNcclAborts");
  setenv("FAKE_NCCL_INIT", "never", 1);
  for (const absl::Status& rank : ConnectAll(2, absl::Milliseconds(500))) {
    EXPECT_EQ(rank.code(), absl::StatusCode::kDeadlineExceeded) << rank;
  }
  EXPECT_EQ(FakeCount("FakeNcclAborts"), aborts + 2);
}

TEST_F(Nccl, AnErrorThatNcclNoticesLaterStaysUntilItConnectsAnew) {
  for (const absl::Status& rank : ConnectAll(1, absl::Seconds(20))) ASSERT_TRUE(rank.ok()) << rank;
  setenv("FAKE_NCCL_ERROR", "remote", 1);
  EXPECT_EQ(ranks_[0]->Check().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(ranks_[0]->Check().message()), HasSubstr("ncclRemoteError"));
  unsetenv("FAKE_NCCL_ERROR");
  ranks_[0]->Abort();
  EXPECT_EQ(ranks_[0]->Check().code(), absl::StatusCode::kUnavailable);
  const auto exchanges = MakeThreadExchanges(1);
  EXPECT_TRUE(ranks_[0]->Connect(*exchanges[0], absl::Seconds(20)).ok());
  EXPECT_TRUE(ranks_[0]->Check().ok());
}

TEST(NcclPlan, RanksTakeTheFewestTokensAndChooseByTheNumberAlone) {
  for (const auto& [theirs, agreed] : {std::pair(2048, 512), std::pair(0, 0), std::pair(16, 0)}) {
    const auto exchanges = MakeThreadExchanges(2);
    absl::StatusOr<GroupPlan> plans[2];
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank, theirs = theirs] {
        GroupOptions options;
        options.capacity = 16;
        options.hidden_max = 64;
        options.nccl_tokens_max = rank == 0 ? 512 : theirs;
        plans[rank] = AgreeOnPlan(options, EnvironmentVariables(), *exchanges[rank]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& plan : plans) {
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(plan->nccl_tokens_max, agreed);
      EXPECT_EQ(plan->tokens_max(), agreed == 0 ? 16 : 512);
      EXPECT_FALSE(plan->GoesToNccl(16));
      EXPECT_TRUE(plan->GoesToNccl(17));
    }
  }
}

}  // namespace
}  // namespace stoker::comm
