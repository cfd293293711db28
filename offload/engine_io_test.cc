// The engine's reads: direct I/O, io_uring, prefetches, prewarming, the timeline, and what it costs
// to wait.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "offload/cpu_expert_kernel.h"
#include "offload/engine.h"
#include "offload/engine_fixture_test.h"
#include "offload/pack/pack.h"
#include "offload/trace/generator.h"

namespace stoker::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using EngineIoTest = EngineTest;

// With files that have descriptors: the fault files have none.
std::unique_ptr<Engine> OnRealFiles(const std::string& directory, const ExpertKernel& kernel,
                                    EngineOptions options, int slots) {
  auto checkpoint = Checkpoint::Open(directory);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  options.cache_bytes = slots * SlotLayout((*checkpoint)->extents(0, 0)).slot_bytes;
  options.chunk_bytes = 8192;
  auto engine = Engine::Create(std::move(*checkpoint), kernel, options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return std::move(*engine);
}

bool WaitUntil(const std::function<bool()>& condition) {
  for (int ms = 0; ms < 20000; ++ms) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + t.tv_usec * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST_F(EngineIoTest, TheSameBitsThroughThePageCachePastItAndForEveryChunkSize) {
  const std::string expected = Outputs(Make(8).get());
  for (const IoMode io : {IoMode::kBuffered, IoMode::kDirect}) {
    for (const int depth : {1, 16}) {
      EngineOptions options;
      options.io = io;
      options.queue_depth = depth;
      const auto engine = OnRealFiles(directory_, kernel_, options, 6);
      EXPECT_TRUE(Outputs(engine.get()) == expected) << engine->lane_kind() << " " << depth;
      EXPECT_GT(engine->stats().evictions, 0);
    }
  }
}

TEST_F(EngineIoTest, APrefetchMakesAHitAndTheSameBits) {
  Tokens expected(1, 4, 256, kExperts, 7);
  ASSERT_TRUE(expected.Run(Make(20).get(), 0).ok());
  auto engine = Make(2 * kExperts + 2);
  Tokens batch(1, 4, 256, kExperts, 7);
  const std::vector<int> experts(batch.ids.begin(), batch.ids.end());
  engine->Prefetch(0, experts);
  ASSERT_TRUE(WaitUntil([&] { return engine->outstanding() == 0; }));
  ASSERT_TRUE(batch.Run(engine.get(), 0).ok());
  EXPECT_EQ(engine->stats().misses, 0);
  EXPECT_GT(engine->stats().prefetches, 0);
  EXPECT_EQ(batch.out, expected.out);
  engine->Prefetch(7, experts);
  engine->Prefetch(0, {-1, kExperts});
  EXPECT_EQ(engine->outstanding(), 0u) << "what does not exist is not fetched";
}

TEST_F(EngineIoTest, ACallJoinsAPrefetchThatIsOnItsWay) {
  Tokens expected(1, 4, 256, kExperts, 7);
  ASSERT_TRUE(expected.Run(Make(20).get(), 0).ok());
  auto engine = Make(2 * kExperts + 2);
  Tokens batch(1, 4, 256, kExperts, 7);
  faults_.hold = true;
  const std::vector<int> experts(batch.ids.begin(), batch.ids.end());
  engine->Prefetch(0, experts);
  ASSERT_TRUE(WaitUntil([&] { return faults_.reading > 0; }));
  std::thread releaser([&] {
    WaitUntil([&] { return engine->stats().hits > 0; });
    faults_.hold = false;
  });
  const absl::Status status = batch.Run(engine.get(), 0);
  releaser.join();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(engine->stats().misses, 0);
  EXPECT_EQ(batch.out, expected.out);
}

TEST_F(EngineIoTest, APrefetchIsCancelledAndItsExpertLoadedLater) {
  EngineOptions options;
  options.io_threads = 1;
  auto engine = Make(2 * kExperts + 2, options);
  faults_.hold = true;
  engine->Prefetch(0, {1, 2, 3});
  ASSERT_TRUE(WaitUntil([&] { return faults_.reading > 0; }));
  engine->CancelPrefetches();
  EXPECT_EQ(engine->outstanding(), 1u) << "the read that runs";
  faults_.hold = false;
  ASSERT_TRUE(WaitUntil([&] { return engine->outstanding() == 0; }));
  EXPECT_EQ(Outputs(engine.get()), Outputs(Make(8).get()));
}

TEST_F(EngineIoTest, AFailedPrefetchLeavesTheExpertAbsentAndTheNextCallLoadsIt) {
  auto engine = Make(2 * kExperts + 2);
  faults_.every_read_fails = true;
  engine->Prefetch(0, {1, 2});
  ASSERT_TRUE(WaitUntil([&] { return engine->outstanding() == 0; }));
  EXPECT_GT(engine->stats().failed_prefetches, 0);
  faults_.every_read_fails = false;
  EXPECT_EQ(Outputs(engine.get()), Outputs(Make(8).get()));
}

// Any bit of any read: the scales, the weights and the zeros between them.
TEST_F(EngineIoTest, AFlippedBitOfAPackedFileFailsItsCallAndNotTheNext) {
  const std::string path = directory_ + "/packed.stoker";
  ASSERT_TRUE(PackCheckpoint(directory_, path, {}).ok());
  Tokens expected(1, 4, 256, kExperts, 7);
  ASSERT_TRUE(expected.Run(Make(20).get(), 0).ok());
  auto checkpoint = Checkpoint::Open(path, faults_.Opener());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EngineOptions options;
  options.cache_bytes = 6 * SlotLayout((*checkpoint)->extents(0, 0)).slot_bytes;
  auto engine = Engine::Create(std::move(*checkpoint), kernel_, options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  for (int round = 0; round < 100; ++round) {
    Tokens batch(1, 4, 256, kExperts, 7);
    faults_.flip_every = 1;
    const absl::Status status = batch.Run(engine->get(), 0);
    faults_.flip_every = 0;
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("layer 0, expert "), HasSubstr("at offset "), HasSubstr(path)));
    ASSERT_TRUE(batch.Run(engine->get(), 0).ok());
    ASSERT_EQ(batch.out, expected.out);
    // Away with what was read right.
    Tokens others(8, 4, 256, kExperts, round);
    ASSERT_TRUE(others.Run(engine->get(), 1).ok());
    for (int32_t& id : others.ids) id = (id + 5) % kExperts;
    ASSERT_TRUE(others.Run(engine->get(), 0).ok());
  }
}

TEST_F(EngineIoTest, PrewarmingFillsTheSharesAndTheFirstCallsHit) {
  const Trace trace = GenerateTrace({.layers = 2, .experts = kExperts, .top_k = 4, .tokens = 50});
  auto engine = Make(2 * kExperts + 2);
  ASSERT_TRUE(engine->Prewarm(trace).ok());
  EXPECT_EQ(engine->outstanding(), 0u);
  Tokens batch(1, 1, 256, kExperts, 7);
  batch.ids[0] = trace.groups[0].routes[0].expert;
  ASSERT_TRUE(batch.Run(engine.get(), 0).ok());
  EXPECT_EQ(engine->stats().hits, 1);
  EXPECT_EQ(engine->stats().misses, 0);
  // A share that is too small keeps what it can.
  ASSERT_TRUE(Make(4)->Prewarm(trace).ok());
}

TEST_F(EngineIoTest, ADemandIsReadBeforeAPrefetch) {
  EngineOptions options;
  options.io_threads = 1;
  auto engine = Make(2 * kExperts + 2, options);
  faults_.latency_us = 1000;
  engine->Prefetch(1, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  Tokens batch(1, 1, 256, kExperts, 7);
  ASSERT_TRUE(batch.Run(engine.get(), 0).ok());
  EXPECT_GT(engine->outstanding(), 0u) << "the prefetches are not done when the call is";
  faults_.latency_us = 0;
}

TEST_F(EngineIoTest, RecordsWhatCallsAskForUpToItsLimit) {
  EngineOptions options;
  options.record_groups = 4;
  auto engine = Make(8, options);
  Tokens one(1, 2, 256, kExperts, 7);
  one.ids = {3, -1};
  ASSERT_TRUE(one.Run(engine.get(), 1).ok());
  Tokens three(3, 2, 256, kExperts, 8);
  ASSERT_TRUE(three.Run(engine.get(), 0).ok());
  ASSERT_TRUE(one.Run(engine.get(), 1).ok());
  const Trace trace = engine->RecordedTrace();
  ASSERT_EQ(trace.groups.size(), 4u);
  EXPECT_EQ(trace.experts, kExperts);
  EXPECT_TRUE(trace.groups[0].decode);
  EXPECT_EQ(trace.groups[0].layer, 1);
  ASSERT_EQ(trace.groups[0].routes.size(), 1u) << "-1 is left out";
  EXPECT_EQ(trace.groups[0].routes[0].expert, 3);
  EXPECT_FALSE(trace.groups[1].decode);
  EXPECT_EQ(trace.groups[3].step, 2);
  EXPECT_EQ(trace.groups[3].routes[1].expert, three.ids[5]);
}

TEST_F(EngineIoTest, TheTimelineHasReadsAndTilesAndIsJson) {
  Timeline timeline;
  EngineOptions options;
  options.timeline = &timeline;
  {
    auto engine = Make(8, options);
    Tokens batch(1, 2, 256, kExperts, 7);
    ASSERT_TRUE(batch.Run(engine.get(), 0).ok());
  }
  const std::string path = directory_ + "/timeline.json";
  ASSERT_TRUE(timeline.Write(path).ok());
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  const auto json = nlohmann::json::parse(text.str());
  int tiles = 0;
  int reads = 0;
  for (const auto& event : json["traceEvents"]) {
    const std::string name = event["name"];
    tiles += name.find(" FC") != std::string::npos;
    reads += name.find("weights") != std::string::npos;
    EXPECT_TRUE(event["ph"] != "X" || event["dur"].get<double>() >= 0);
  }
  EXPECT_EQ(tiles, 2 * (2 + 1)) << "two of FC1 and one of FC2 an expert";
  EXPECT_GE(reads, 2 * 3);
}

TEST_F(EngineIoTest, AnIdleEngineUsesNoCpu) {
  auto engine = Make(8);
  Tokens batch(1, 2, 256, kExperts, 7);
  ASSERT_TRUE(batch.Run(engine.get(), 0).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  const double before = CpuSeconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(CpuSeconds() - before, 0.01);
}

TEST_F(EngineIoTest, TwoEnginesInOneProcessDoNotMeet) {
  const std::string expected = Outputs(Make(8).get());
  auto one = Make(8);
  auto two = Make(6);
  std::string of_one;
  std::string of_two;
  std::thread thread([&] { of_one = Outputs(one.get()); });
  of_two = Outputs(two.get());
  thread.join();
  EXPECT_TRUE(of_one == expected && of_two == expected);
}

TEST_F(EngineIoTest, MemoryStaysTheSameOverManyEvictions) {
  const CpuExpertKernel fast(cpu::PickKernel(cpu::DetectCpuFeatures()));
  const auto resident = [] {
    std::ifstream statm("/proc/self/statm");
    int64_t size = 0;
    int64_t pages = 0;
    statm >> size >> pages;
    return pages * 4096;
  };
  const int64_t before = resident();
  auto engine = OnRealFiles(directory_, fast, {}, 5);
  Tokens batch(1, 4, 256, kExperts, 7);
  std::mt19937_64 random(3);
  int64_t settled = 0;
  for (int call = 0; engine->stats().evictions < 100'000; ++call) {
    for (int32_t& id : batch.ids) id = static_cast<int32_t>(random() % kExperts);
    ASSERT_TRUE(batch.Run(engine.get(), call % 2).ok());
    if (engine->stats().evictions > 10'000 && settled == 0) settled = resident();
  }
  EXPECT_LT(resident() - settled, 4 << 20);
  const int64_t budget = static_cast<int64_t>(engine->stats().slots * engine->slot_bytes());
  std::printf("resident %.1f MiB more than before, of which the cache %.1f MiB\n",
              (resident() - before) / 1048576.0, budget / 1048576.0);
  EXPECT_LT(resident() - before, budget + (64 << 20));
}

}  // namespace
}  // namespace stoker::offload
