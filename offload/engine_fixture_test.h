// What the tests of the engine share: batches, a checkpoint of 2 layers x 16 experts, faults.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "offload/engine.h"
#include "testing/expert_checkpoint.h"
#include "testing/faulty_files.h"
#include "testing/plain_expert_kernel.h"

namespace stoker::offload {

struct Tokens {
  Tokens(int tokens, int top_k, int hidden, int experts, uint64_t seed)
      : tokens(tokens), top_k(top_k), out(static_cast<size_t>(tokens) * hidden, NAN) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < tokens * hidden; ++i) {
      this->hidden.push_back(static_cast<float>(random() % 2001) / 1000.0f - 1.0f);
    }
    for (int i = 0; i < tokens * top_k; ++i) {
      ids.push_back(static_cast<int32_t>(random() % experts));
      weights.push_back(static_cast<float>(random() % 1000) / 1000.0f);
    }
  }
  absl::Status Run(Engine* engine, int layer) {
    return engine->Run({layer, tokens, top_k, hidden.data(), ids.data(), weights.data(), 2.5f},
                       absl::MakeSpan(out));
  }
  int tokens;
  int top_k;
  std::vector<float> hidden;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<float> out;
};

class EngineTest : public ::testing::Test {
 protected:
  static constexpr int kExperts = 16;
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/engine_" +
                 ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(directory_);
    ASSERT_TRUE(testing::WriteExpertCheckpoint(directory_, {.experts = kExperts}).ok());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<Engine> Make(int slots, EngineOptions options = {}) {
    auto checkpoint = Checkpoint::Open(directory_, faults_.Opener());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    options.cache_bytes = slots * SlotLayout((*checkpoint)->extents(0, 0)).slot_bytes;
    options.chunk_bytes = 8192;
    auto engine = Engine::Create(std::move(*checkpoint), kernel_, options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return std::move(*engine);
  }
  // The outputs of a few calls on both layers, as bytes.
  std::string Outputs(Engine* engine, int tokens = 5) {
    std::string bytes;
    for (int call = 0; call < 12; ++call) {
      Tokens batch(tokens, 4, 256, kExperts, call);
      const absl::Status status = batch.Run(engine, call % 2);
      EXPECT_TRUE(status.ok()) << status;
      bytes.append(reinterpret_cast<const char*>(batch.out.data()), batch.out.size() * 4);
    }
    EXPECT_EQ(engine->outstanding(), 0u);
    return bytes;
  }

  std::string directory_;
  testing::FaultyFiles faults_;
  testing::PlainExpertKernel kernel_;
};

}  // namespace stoker::offload
