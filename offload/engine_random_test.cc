// Random operations on engines that come and go with another budget each time: calls of several
// threads, prefetches, cancellations, faults, shutdown with reads in flight. Half of the engines
// read a packed file, where flipped bits are faults, too: a checksum finds each. Built once more
// with ThreadSanitizer and AddressSanitizer.
//
//   STOKER_SEED        of the operations (default 1)
//   STOKER_OPERATIONS  how many (default 20,000; 1,000,000 where STOKER_LONG is set)
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>

#include "offload/cpu_expert_kernel.h"
#include "offload/engine.h"
#include "offload/engine_fixture_test.h"
#include "offload/pack/pack.h"
#include "testing/long_run.h"

namespace stoker::offload {
namespace {

constexpr int kBatches = 8;
constexpr int kOperationsARound = 250;

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

class EngineRandomTest : public EngineTest {
 protected:
  EngineRandomTest() : fast_(cpu::PickKernel(cpu::DetectCpuFeatures())) {}

  static Tokens MakeBatch(int number) { return Tokens(1 + number % 3, 3, 256, kExperts, number); }

  absl::StatusOr<std::unique_ptr<Engine>> RandomEngine(std::mt19937_64* random, bool packed) {
    const std::string path = packed ? directory_ + "/packed.stoker" : directory_;
    STOKER_ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(path, faults_.Opener()));
    EngineOptions options;
    options.cache_bytes = (3 + (*random)() % 40) * SlotLayout(checkpoint->extents(0, 0)).slot_bytes;
    options.chunk_bytes = 4096 << (*random)() % 3;
    options.compute_threads = 1 + static_cast<int>((*random)() % 3);
    options.io_threads = 1 + static_cast<int>((*random)() % 4);
    options.policy = (*random)() % 2 == 0 ? PolicyKind::kDecayedLfu : PolicyKind::kLru;
    options.scheduler = static_cast<Scheduler>((*random)() % 4);
    // A few rounds have calls that are late.
    options.timeout = (*random)() % 8 == 0 ? absl::Milliseconds(2) : absl::Seconds(60);
    return Engine::Create(std::move(checkpoint), fast_, options);
  }

  // What one thread does in a round.
  void Operate(Engine* engine, bool packed, uint64_t seed, int operations) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < operations; ++i) {
      const uint64_t kind = random() % 16;
      if (kind < 11) {
        const int number = static_cast<int>(random() % kBatches);
        Tokens batch = MakeBatch(number);
        const absl::Status status = batch.Run(engine, number % 2);
        ++(status.ok() ? right_ : failed_);
        if (status.ok() && batch.out != expected_[number]) ++wrong_;
      } else if (kind < 13) {
        engine->Prefetch(static_cast<int>(random() % 2), {static_cast<int>(random() % kExperts),
                                                          static_cast<int>(random() % kExperts)});
      } else if (kind == 13) {
        engine->CancelPrefetches();
      } else if (kind == 14) {
        faults_.fail_after = random() % 2 == 0 ? static_cast<int64_t>(random() % 40) : -1;
      } else {
        faults_.short_reads = random() % 2 == 0;
        faults_.replaced = random() % 16 == 0;
        faults_.ends_early = random() % 16 == 0;
        faults_.flip_every = packed && random() % 4 == 0 ? 1 + static_cast<int>(random() % 50) : 0;
      }
    }
  }

  const CpuExpertKernel fast_;
  std::vector<std::vector<float>> expected_;
  std::atomic<int64_t> right_{0};
  std::atomic<int64_t> failed_{0};
  std::atomic<int64_t> wrong_{0};
};

TEST_F(EngineRandomTest, NothingIsWrongLeftBehindOrHangs) {
  std::mt19937_64 random(FromEnvironment("STOKER_SEED", 1));
  ASSERT_TRUE(PackCheckpoint(directory_, directory_ + "/packed.stoker", {}).ok());
  {
    auto engine = RandomEngine(&random, /*packed=*/false);
    ASSERT_TRUE(engine.ok()) << engine.status();
    for (int number = 0; number < kBatches; ++number) {
      Tokens batch = MakeBatch(number);
      absl::Status status = batch.Run(engine->get(), number % 2);
      while (absl::IsDeadlineExceeded(status)) status = batch.Run(engine->get(), number % 2);
      ASSERT_TRUE(status.ok()) << status;
      expected_.push_back(batch.out);
    }
  }
  const int64_t rounds =
      FromEnvironment("STOKER_OPERATIONS", testing::Repetitions(20'000, 1'000'000)) /
      kOperationsARound;
  for (int64_t round = 0; round < rounds; ++round) {
    faults_.fail_after = -1;
    faults_.short_reads = faults_.replaced = faults_.ends_early = false;
    faults_.flip_every = 0;
    const bool packed = random() % 2 == 0;
    auto engine = RandomEngine(&random, packed);
    ASSERT_TRUE(engine.ok()) << engine.status();
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([this, &engine, packed, seed = random()] {
        Operate(engine->get(), packed, seed, kOperationsARound / 2);
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (random() % 2 == 0) {
      // Shutdown with reads in flight.
      (*engine)->Prefetch(0, {0, 1, 2, 3, 4, 5});
      continue;
    }
    (*engine)->CancelPrefetches();
    for (int ms = 0; ms < 20'000 && (*engine)->outstanding() > 0; ++ms) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_EQ((*engine)->outstanding(), 0u) << "round " << round;
  }
  EXPECT_EQ(wrong_, 0);
  EXPECT_GT(right_, rounds * 20);
  EXPECT_GT(failed_, rounds);
}

}  // namespace
}  // namespace stoker::offload
