#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "offload/trace/generator.h"
#include "testing/expert_checkpoint.h"
#include "testing/plain_expert_kernel.h"
#include "tools/offload_bench/paired.h"
#include "tools/offload_bench/run_trace.h"
#include "tools/offload_bench/sha256.h"
#include "tools/offload_bench/throttled_files.h"

namespace stoker::tools {
namespace {

TEST(Sha256, OfThePublishedExamples) {
  Sha256 empty;
  EXPECT_EQ(empty.Hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 abc;
  abc.Add("a", 1);
  abc.Add("bc", 2);
  EXPECT_EQ(abc.Hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 million;
  const std::string as(1000, 'a');
  for (int i = 0; i < 1000; ++i) million.Add(as.data(), as.size());
  EXPECT_EQ(million.Hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(PairedDifference, ByHand) {
  const Interval same = PairedDifference({1, 2, 3}, {1, 2, 3});
  EXPECT_EQ(same.mean, 0);
  EXPECT_EQ(same.high, 0);
  // 10% and 20%: mean 15, standard error 5, t with one degree of freedom 12.706.
  const Interval ten = PairedDifference({1.1, 1.2}, {1, 1});
  EXPECT_NEAR(ten.mean, 15, 1e-9);
  EXPECT_NEAR(ten.high, 15 + 12.706 * 5, 1e-6);
}

class RunTraceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/run_trace";
    std::filesystem::create_directories(directory_);
    ASSERT_TRUE(testing::WriteExpertCheckpoint(directory_, {.experts = 16}).ok());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  absl::StatusOr<TraceRun> Run(int slots, int tokens_per_call,
                               const offload::FileOpener& opener = offload::OpenPosixFile) {
    STOKER_ASSIGN_OR_RETURN(auto checkpoint, offload::Checkpoint::Open(directory_, opener));
    offload::EngineOptions options;
    options.cache_bytes = slots * offload::SlotLayout(checkpoint->extents(0, 0)).slot_bytes;
    STOKER_ASSIGN_OR_RETURN(auto engine,
                            offload::Engine::Create(std::move(checkpoint), kernel_, options));
    RunOptions run;
    run.tokens_per_call = tokens_per_call;
    return RunTrace(*engine, trace_, run);
  }
  std::string directory_;
  testing::PlainExpertKernel kernel_;
  offload::Trace trace_ =
      offload::GenerateTrace({.layers = 3, .experts = 16, .top_k = 4, .tokens = 21});
};

TEST_F(RunTraceTest, CountsAddUpAndTheHashDoesNotDependOnTheCache) {
  const auto small = Run(8, 1);
  const auto large = Run(40, 1);
  ASSERT_TRUE(small.ok() && large.ok()) << small.status() << large.status();
  EXPECT_EQ(small->hash, large->hash);
  EXPECT_EQ(small->tokens, 20);
  EXPECT_EQ(small->calls, 40) << "two layers of the three exist";
  EXPECT_EQ(small->hits + small->misses, 160);
  EXPECT_GT(small->misses, large->misses);
  EXPECT_GT(small->evictions, 0);
  EXPECT_EQ(large->evictions, 0);
  EXPECT_EQ(small->bytes_computed, 160 * (3 * 256 * 128 / 2 + 3 * 256 * 128 / 32 * 2));
  EXPECT_LE(small->stall_seconds, small->seconds);
  const Rates slow_reads{
      .io = 1e9, .compute = 1e30, .io_cpu = 1e30, .compute_cpu = 1e30, .cpus = 2};
  EXPECT_NEAR(small->Bound(slow_reads, true), small->bytes_read / 1e9, 1e-9);
  // Reads that take a CPU second a GB, shared by two.
  Rates busy = slow_reads;
  busy.io = 1e30, busy.io_cpu = 1e9;
  EXPECT_NEAR(small->Bound(busy, true), small->bytes_read / 2e9, 1e-9);
  EXPECT_LT(small->Bound(busy, false), 1e-9);
  int calls_with_misses = 0;
  for (const auto& [read, computed] : small->call_bytes) calls_with_misses += read > 0;
  EXPECT_GT(calls_with_misses, 0);
  EXPECT_NEAR(small->Target(slow_reads, false, 1e6),
              1.05 * small->bytes_read / 1e9 + 1e-3 * calls_with_misses, 1e-9);
  const auto four = Run(8, 4);
  ASSERT_TRUE(four.ok());
  EXPECT_EQ(four->tokens, 16) << "of five calls of four tokens the first is not timed";
  EXPECT_NE(four->hash, small->hash) << "other activations";
}

TEST_F(RunTraceTest, AThrottledStoreIsAsSlowAsItSays) {
  ThrottledFiles store(20e6);
  const auto run = Run(8, 1, store.Opener());
  ASSERT_TRUE(run.ok()) << run.status();
  const double seconds = run->bytes_read / 20e6;
  EXPECT_GT(run->seconds, 0.95 * seconds);
  EXPECT_EQ(run->hash, Run(8, 1)->hash);
}

TEST_F(RunTraceTest, ATraceWithTooManyExpertsOrTooFewTokensIsRefused) {
  trace_.experts = 17;
  EXPECT_FALSE(Run(8, 1).ok());
  trace_.experts = 16;
  EXPECT_FALSE(Run(8, 21).ok());
}

}  // namespace
}  // namespace stoker::tools
