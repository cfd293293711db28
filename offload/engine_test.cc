#include "offload/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "offload/cpu_expert_kernel.h"
#include "offload/engine_fixture_test.h"

namespace stoker::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Every expert computed alone, straight from the files, summed in ascending id.
std::vector<float> Expected(const Checkpoint& checkpoint, const ExpertKernel& kernel, int layer,
                            const Tokens& batch) {
  const ExpertShape& s = checkpoint.shape();
  std::vector<float> out(batch.out.size(), 0.0f);
  for (int expert = 0; expert < checkpoint.experts(); ++expert) {
    std::array<std::string, kParts> bytes;
    ExpertView view{s, {}};
    for (int part = 0; part < kParts; ++part) {
      const Extent& extent = checkpoint.extents(layer, expert).parts[part];
      bytes[part].resize(extent.bytes);
      EXPECT_TRUE(
          ReadFully(checkpoint.file(extent.file), extent.offset, absl::MakeSpan(bytes[part])).ok());
      view.parts[part] = bytes[part].data();
    }
    for (size_t r = 0; r < batch.ids.size(); ++r) {
      if (batch.ids[r] != expert) continue;
      const size_t token = r / batch.top_k;
      std::vector<char> x(kernel.PreparedBytes(s.hidden, s.group));
      std::vector<char> m(kernel.PreparedBytes(s.intermediate, s.group));
      std::vector<float> middle(s.intermediate);
      std::vector<float> row(s.hidden);
      kernel.Prepare(batch.hidden.data() + token * s.hidden, s.hidden, s.group, x.data());
      kernel.Fc1(view, {x.data(), 0, 1}, 0, s.intermediate, middle.data(), 0);
      kernel.Prepare(middle.data(), s.intermediate, s.group, m.data());
      kernel.Fc2(view, {m.data(), 0, 1}, 0, s.hidden, row.data(), 0);
      for (int h = 0; h < s.hidden; ++h) {
        float& sum = out[token * s.hidden + h];
        sum = std::fma(batch.weights[r], row[h], sum);
      }
    }
  }
  for (float& value : out) value *= 2.5f;
  return out;
}

TEST_F(EngineTest, EqualsEveryExpertComputedAlone) {
  auto engine = Make(10);
  Tokens batch(5, 4, 256, kExperts, 7);
  ASSERT_TRUE(batch.Run(engine.get(), 1).ok());
  const auto expected = Expected(engine->checkpoint(), kernel_, 1, batch);
  EXPECT_EQ(0, std::memcmp(batch.out.data(), expected.data(), expected.size() * 4));
}

TEST_F(EngineTest, TheSameBitsForEveryCacheThreadCountSchedulerAndBuffer) {
  const auto all = Make(2 * kExperts + 2);
  const std::string expected = Outputs(all.get());
  EXPECT_EQ(all->stats().evictions, 0);
  for (const int slots : {3, 8, 16}) {
    for (const Scheduler scheduler : {Scheduler::kDynamic, Scheduler::kIndexOrder,
                                      Scheduler::kReadyFirstOnce, Scheduler::kLoadAllThenCompute}) {
      EngineOptions options;
      options.scheduler = scheduler;
      options.compute_threads = slots % 3 + 1;
      options.io_threads = slots % 4 + 1;
      options.buffer_bytes = slots == 8 ? 32768 : 32 << 20;
      const auto engine = Make(slots, options);
      EXPECT_TRUE(Outputs(engine.get()) == expected)
          << slots << " slots, scheduler " << static_cast<int>(scheduler);
      EXPECT_GT(engine->stats().misses, 0);
      EXPECT_GT(engine->stats().hits, 0);
      EXPECT_GT(engine->stats().evictions, 0);
    }
  }
}

TEST_F(EngineTest, TwoLayersOf64ExpertsH2048I768EqualWithAQuarterHalfAndAllOfThemCached) {
  ASSERT_TRUE(testing::WriteExpertCheckpoint(directory_,
                                             {.experts = 64, .hidden = 2048, .intermediate = 768})
                  .ok());
  std::vector<std::string> outputs;
  for (const int slots : {32, 64, 130}) {
    EngineOptions options;
    options.compute_threads = 2;
    const auto engine = Make(slots, options);
    std::string bytes;
    for (int call = 0; call < 24; ++call) {
      Tokens batch(1, 8, 2048, 64, call / 2 % 6);
      const absl::Status status = batch.Run(engine.get(), call % 2);
      ASSERT_TRUE(status.ok()) << status;
      bytes.append(reinterpret_cast<const char*>(batch.out.data()), batch.out.size() * 4);
    }
    const EngineStats stats = engine->stats();
    EXPECT_GT(stats.hits, 0);
    EXPECT_GT(stats.misses, 0);
    EXPECT_EQ(stats.evictions > 0, slots < 130) << slots;
    outputs.push_back(std::move(bytes));
  }
  EXPECT_TRUE(outputs[0] == outputs[2]);
  EXPECT_TRUE(outputs[1] == outputs[2]);
}

TEST_F(EngineTest, EveryCpuKernelGivesTheSameBitsAndIsCloseToPlainLoops) {
  Tokens plain(5, 4, 256, kExperts, 7);
  ASSERT_TRUE(plain.Run(Make(8).get(), 1).ok());
  std::vector<float> first;
  const cpu::CpuFeatures features = cpu::DetectCpuFeatures();
  for (const cpu::ExpertKernel& row : cpu::AllKernels()) {
    if (!row.supported(features)) continue;
    const CpuExpertKernel kernel(row);
    auto checkpoint = Checkpoint::Open(directory_);
    ASSERT_TRUE(checkpoint.ok());
    EngineOptions options;
    options.cache_bytes = 8 * SlotLayout((*checkpoint)->extents(0, 0)).slot_bytes;
    auto engine = Engine::Create(std::move(*checkpoint), kernel, options);
    ASSERT_TRUE(engine.ok());
    Tokens batch(5, 4, 256, kExperts, 7);
    ASSERT_TRUE(batch.Run(engine->get(), 1).ok());
    if (first.empty()) first = batch.out;
    EXPECT_TRUE(batch.out == first) << row.name;
    double error = 0;
    double size = 0;
    for (size_t i = 0; i < plain.out.size(); ++i) {
      error += std::pow(batch.out[i] - plain.out[i], 2.0);
      size += std::pow(plain.out[i], 2.0);
    }
    // The exps differ in their last bits, which can move an int8 by one.
    EXPECT_LT(std::sqrt(error / size), 1e-3) << row.name;
  }
  EXPECT_FALSE(first.empty());
}

TEST_F(EngineTest, SkipsAndCountsIdsOutOfRange) {
  auto engine = Make(10);
  Tokens batch(2, 2, 256, kExperts, 3);
  batch.ids = {-1, kExperts, 3, INT32_MAX};
  ASSERT_TRUE(batch.Run(engine.get(), 0).ok());
  EXPECT_EQ(engine->stats().skipped_routes, 3);
  for (int h = 0; h < 256; ++h) EXPECT_EQ(batch.out[h], 0.0f);
  EXPECT_NE(batch.out[256], 0.0f);
}

TEST_F(EngineTest, ZeroTokensIsACall) {
  auto engine = Make(10);
  Tokens batch(0, 2, 256, kExperts, 3);
  EXPECT_TRUE(batch.Run(engine.get(), 0).ok());
}

TEST_F(EngineTest, RanksAddUpToOneEngine) {
  Tokens whole(3, 4, 256, kExperts, 9);
  whole.weights.assign(12, 1.0f);
  Tokens one = whole;
  Tokens two = whole;
  ASSERT_TRUE(whole.Run(Make(10).get(), 0).ok());
  EngineOptions options;
  options.world_size = 2;
  ASSERT_TRUE(one.Run(Make(10, options).get(), 0).ok());
  options.rank = 1;
  ASSERT_TRUE(two.Run(Make(10, options).get(), 0).ok());
  for (size_t i = 0; i < whole.out.size(); ++i) {
    EXPECT_NEAR(one.out[i] + two.out[i], whole.out[i], 1e-4f * (1 + std::fabs(whole.out[i])));
  }
}

TEST_F(EngineTest, RefusesBudgetsAndBatchesThatCannotWork) {
  auto engine = Make(10);
  Tokens batch(2, 2, 256, kExperts, 3);
  EXPECT_THAT(std::string(batch.Run(engine.get(), 2).message()), HasSubstr("layer_index"));
  batch.out.pop_back();
  EXPECT_THAT(std::string(batch.Run(engine.get(), 0).message()), HasSubstr("out has"));
  auto checkpoint = Checkpoint::Open(directory_);
  EngineOptions options;
  options.cache_bytes = 2 * engine->slot_bytes();
  EXPECT_THAT(
      std::string(Engine::Create(std::move(*checkpoint), kernel_, options).status().message()),
      AllOf(HasSubstr("cache_bytes"), HasSubstr("are needed")));
}

TEST_F(EngineTest, AFailingReadNamesItsExpertAndTheNextCallWorks) {
  auto engine = Make(8);
  Tokens batch(5, 4, 256, kExperts, 7);
  for (const int reads : {0, 1, 3, 10, 30}) {
    faults_.fail_after = reads;
    const absl::Status status = batch.Run(engine.get(), 1);
    faults_.fail_after = -1;
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr("layer 1, expert "), HasSubstr("at offset "), HasSubstr(directory_)));
    EXPECT_EQ(engine->outstanding(), 0u);
    ASSERT_TRUE(batch.Run(engine.get(), 0).ok());
  }
  ASSERT_TRUE(batch.Run(engine.get(), 1).ok());
  const auto expected = Expected(engine->checkpoint(), kernel_, 1, batch);
  EXPECT_EQ(0, std::memcmp(batch.out.data(), expected.data(), expected.size() * 4));
}

TEST_F(EngineTest, EveryFaultOfAFileIsItsOwnError) {
  auto engine = Make(8);
  Tokens batch(1, 2, 256, kExperts, 7);
  const std::pair<std::atomic<bool>*, const char*> cases[] = {
      {&faults_.ends_early, "the file ends"},
      {&faults_.not_finite, "not finite"},
      {&faults_.replaced, "was replaced"},
      {&faults_.every_read_fails, "Input/output error"}};
  for (const auto& [fault, message] : cases) {
    *fault = true;
    EXPECT_THAT(std::string(batch.Run(engine.get(), 0).message()), HasSubstr(message));
    *fault = false;
    EXPECT_EQ(engine->outstanding(), 0u);
  }
  EXPECT_TRUE(batch.Run(engine.get(), 0).ok());
}

TEST_F(EngineTest, TheExpertsOfACallAreLeasedBeforeAnyVictimIsChosen) {
  // One slot a layer and two scratch slots.
  auto engine = Make(4);
  Tokens batch(1, 1, 256, kExperts, 3);
  batch.ids = {5};
  ASSERT_TRUE(batch.Run(engine.get(), 0).ok());
  Tokens both(1, 2, 256, kExperts, 3);
  both.ids = {2, 5};
  ASSERT_TRUE(both.Run(engine.get(), 0).ok());
  EXPECT_EQ(engine->stats().hits, 1);
  EXPECT_EQ(engine->stats().evictions, 0) << "2 went into a scratch slot, 5 stayed";
}

TEST_F(EngineTest, ShortReadsChangeNothing) {
  const std::string expected = Outputs(Make(8).get());
  faults_.short_reads = true;
  EXPECT_TRUE(Outputs(Make(8).get()) == expected);
}

TEST_F(EngineTest, ACallThatIsLateIsAnErrorAndTheEngineRecovers) {
  EngineOptions options;
  options.timeout = absl::Milliseconds(50);
  options.io_threads = 1;
  auto engine = Make(8, options);
  Tokens batch(5, 4, 256, kExperts, 7);
  faults_.latency_us = 30000;
  const absl::Status late = batch.Run(engine.get(), 0);
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  faults_.latency_us = 0;
  absl::Status status = batch.Run(engine.get(), 0);
  for (int i = 0; i < 20 && !status.ok(); ++i) status = batch.Run(engine.get(), 0);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(engine->outstanding(), 0u);
}

TEST_F(EngineTest, ClosesWith32ReadsInFlight) {
  EngineOptions options;
  options.timeout = absl::Seconds(2);
  options.io_threads = 32;
  auto engine = Make(2 * kExperts + 2, options);
  Tokens batch(16, 4, 256, kExperts, 7);
  faults_.hold = true;
  std::atomic<int> most{0};
  std::thread watcher([&] {
    for (int ms = 0; ms < 20000 && most < 32; ++ms) {
      most = std::max(most.load(), faults_.reading.load());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  EXPECT_EQ(batch.Run(engine.get(), 0).code(), absl::StatusCode::kDeadlineExceeded);
  watcher.join();
  EXPECT_EQ(most, 32);
  EXPECT_GT(engine->outstanding(), 0u);
  std::thread releaser([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    faults_.hold = false;
  });
  engine.reset();
  releaser.join();
  EXPECT_EQ(faults_.reading, 0);
}

TEST_F(EngineTest, CallsOfSeveralThreadsTakeTurns) {
  auto engine = Make(8);
  Tokens expected(5, 4, 256, kExperts, 7);
  ASSERT_TRUE(expected.Run(engine.get(), 0).ok());
  std::vector<std::thread> threads;
  std::atomic<int> equal{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) {
        Tokens batch(5, 4, 256, kExperts, 7);
        if (batch.Run(engine.get(), 0).ok() && batch.out == expected.out) ++equal;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, 20);
}

TEST_F(EngineTest, RandomCallsAndFaultsLeaveNothingBehind) {
  auto engine = Make(6);
  std::vector<std::vector<float>> expected;
  for (int seed = 0; seed < 8; ++seed) {
    Tokens batch(2, 3, 256, kExperts, seed);
    ASSERT_TRUE(batch.Run(engine.get(), seed % 2).ok());
    expected.push_back(batch.out);
  }
  std::mt19937_64 random(20);
  int failed = 0;
  for (int i = 0; i < 20000; ++i) {
    const int seed = static_cast<int>(random() % 8);
    Tokens batch(2, 3, 256, kExperts, seed);
    faults_.short_reads = random() % 2 == 0;
    faults_.fail_after = random() % 3 == 0 ? static_cast<int64_t>(random() % 40) : -1;
    const bool faulty = faults_.fail_after >= 0;
    const absl::Status status = batch.Run(engine.get(), seed % 2);
    ASSERT_EQ(engine->outstanding(), 0u) << "operation " << i;
    ASSERT_TRUE(status.ok() || faulty) << "operation " << i << ": " << status;
    if (status.ok()) {
      ASSERT_TRUE(batch.out == expected[seed]) << "operation " << i;
    } else {
      ++failed;
    }
  }
  EXPECT_GT(failed, 1000);
  EXPECT_LT(failed, 10000);
}

TEST_F(EngineTest, AForkedChildGetsAnError) {
  auto engine = Make(8);
  const pid_t child = fork();
  if (child == 0) {
    Tokens batch(1, 2, 256, kExperts, 7);
    const bool refused = batch.Run(engine.get(), 0).code() == absl::StatusCode::kFailedPrecondition;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// In a child with room for the stacks of some threads and not of all: the ones that started end.
TEST_F(EngineTest, AThreadThatCannotStartIsAnError) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    const rlimit few{pages * 4096 + (256u << 20), pages * 4096 + (256u << 20)};
    if (setrlimit(RLIMIT_AS, &few) != 0) _exit(2);
    auto checkpoint = Checkpoint::Open(directory_);
    if (!checkpoint.ok()) _exit(3);
    EngineOptions options;
    options.cache_bytes = 8 * SlotLayout((*checkpoint)->extents(0, 0)).slot_bytes;
    options.compute_threads = 256;
    const auto engine = Engine::Create(std::move(*checkpoint), kernel_, options);
    const bool named = engine.status().code() == absl::StatusCode::kResourceExhausted &&
                       engine.status().message().find("cannot start thread") != std::string::npos;
    _exit(named ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "2, 3: set-up; 1: another outcome; a signal: it hung";
}

}  // namespace
}  // namespace stoker::offload
