// How near results are to FP64, and the arithmetic of quantised rows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "offload/cpu/kernel.h"
#include "offload/cpu/random_expert.h"

namespace stoker::offload::cpu {
namespace {

// The shape of Qwen3-30B-A3B; exact products are FP64 over the dequantised weights.
constexpr int kHidden = 2048, kIntermediate = 768, kGroup = 32;

template <class Row>
double ExactDot(const PackedMatrix& m, int row, int columns, const Row& in) {
  double sum = 0;
  for (int k = 0; k < columns; ++k) {
    float scale;
    std::memcpy(&scale, m.scales + row * m.scale_stride + k / kGroup * 4, 4);
    const int nibble = m.weights[row * m.weight_stride + k / 2] >> (k % 2 * 4) & 15;
    int zero = 8;
    if (m.zeros != nullptr) {  // nibble r % 8 of word [r / 8, block], two to a byte
      const int r = m.zero_row + row * m.zero_row_step;
      const auto byte =
          static_cast<uint8_t>(m.zeros[r / 8 * m.zero_stride + k / kGroup * 4 + r % 8 / 2]);
      zero = byte >> (r % 2 * 4) & 15;
    }
    sum += static_cast<double>(scale) * (nibble - zero) * in[k];
  }
  return sum;
}

template <class Row>
double RelativeRms(const Expert& e, const std::vector<float>& got, const Row& in) {
  double error = 0, norm = 0;
  for (int i = 0; i < kHidden; ++i) {
    const double want = ExactDot(e.down, i, kIntermediate, in);
    error += (got[i] - want) * (got[i] - want);
    norm += want * want;
  }
  return std::sqrt(error / norm);
}

// What FC2 adds: its activations have 16 bits, as two int8 planes.
TEST(Accuracy, OneProductOfFc2) {
  for (const Zeros zeros : {Zeros::kEight, Zeros::kStored}) {
    RandomExpert random(kHidden, kIntermediate, kGroup, ScaleType::kFp32, Scales::kOrdinary, 5,
                        zeros);
    const auto x = RandomRows(1, kIntermediate, 1.0f, 6);
    const ExpertKernel& kernel = PickKernel(DetectCpuFeatures());
    const auto got = RunTiles(kernel.fc2, random.expert, Prepare(x, kIntermediate, kGroup),
                              kIntermediate, kHidden, 1, 64);
    const double relative = RelativeRms(random.expert, got, x);
    std::printf("one product of FC2: relative RMS error %.6f (%s)\n", relative, kernel.name);
    EXPECT_LE(relative, 1e-4);
    EXPECT_GT(relative, 0.0) << "int8 activations cannot be exact: what was compared?";
  }
}

// What remains is FC1's rounding of the token to int8: exact FC2 products of the kernel's own
// activated row are as far from the truth.
TEST(Accuracy, WholeExpertWithinOnePercent) {
  for (const Zeros zeros : {Zeros::kEight, Zeros::kStored}) {
    RandomExpert random(kHidden, kIntermediate, kGroup, ScaleType::kFp32, Scales::kOrdinary, 5,
                        zeros);
    const Expert& e = random.expert;
    double whole = 0, of_fc1 = 0;
    const ExpertKernel& kernel = PickKernel(DetectCpuFeatures());
    constexpr int kRows = 4;
    for (int seed = 0; seed < kRows; ++seed) {
      const auto x = RandomRows(1, kHidden, 1.0f, 6 + seed);
      std::vector<double> middle(kIntermediate);
      for (int i = 0; i < kIntermediate; ++i) {
        const double gate = ExactDot(e.gate, i, kHidden, x);
        middle[i] = gate / (1 + std::exp(-gate)) * ExactDot(e.up, i, kHidden, x);
      }
      const auto activated =
          RunTiles(kernel.fc1, e, Prepare(x, kHidden, kGroup), kHidden, kIntermediate, 1, 64);
      const auto got = RunTiles(kernel.fc2, e, Prepare(activated, kIntermediate, kGroup),
                                kIntermediate, kHidden, 1, 64);
      std::vector<float> exact_fc2(kHidden);
      for (int i = 0; i < kHidden; ++i) {
        exact_fc2[i] = static_cast<float>(ExactDot(e.down, i, kIntermediate, activated));
      }
      whole += RelativeRms(e, got, middle) / kRows;
      of_fc1 += RelativeRms(e, exact_fc2, middle) / kRows;
    }
    std::printf("whole expert: relative RMS error %.5f, of FC1 %.5f (%s)\n", whole, of_fc1,
                kernel.name);
    EXPECT_LE(whole, 0.01);
    EXPECT_GT(whole, 0.001) << "int8 activations cannot be exact: what was compared?";
    EXPECT_NEAR(whole, of_fc1, 1e-4);
  }
}

TEST(Accuracy, Fp32ActivationsAreExactToFp32) {
  for (const Zeros zeros : {Zeros::kEight, Zeros::kStored}) {
    RandomExpert random(kHidden, kIntermediate, kGroup, ScaleType::kFp32, Scales::kOrdinary, 5,
                        zeros);
    const Expert& e = random.expert;
    const auto x = RandomRows(1, kHidden, 1.0f, 6);
    std::vector<double> middle(kIntermediate);
    for (int i = 0; i < kIntermediate; ++i) {
      const double gate = ExactDot(e.gate, i, kHidden, x);
      middle[i] = gate / (1 + std::exp(-gate)) * ExactDot(e.up, i, kHidden, x);
    }
    const ExpertKernel& kernel = PickKernel(DetectCpuFeatures());
    const auto activated = RunFp32Tiles(kernel.fc1_fp32, e, x, kHidden, kIntermediate, 64);
    const auto got = RunFp32Tiles(kernel.fc2_fp32, e, activated, kIntermediate, kHidden, 64);
    EXPECT_LE(RelativeRms(e, got, middle), 2e-6) << kernel.name;
  }
}

TEST(Quantize, NonFiniteElementMakesItsRowNaN) {
  RandomExpert random(160, 64, 32, ScaleType::kBf16, Scales::kOrdinary, 3);
  for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    auto x = RandomRows(2, 160, 1.0f, 4);
    x[160 + 70] = bad;
    for (const ExpertKernel& kernel : AllKernels()) {
      if (!kernel.supported(DetectCpuFeatures())) continue;
      const auto out = RunTiles(kernel.fc1, random.expert, Prepare(x, 160, 32), 160, 64, 2, 64);
      for (int i = 0; i < 64; ++i) {
        EXPECT_TRUE(std::isfinite(out[i]));
        EXPECT_TRUE(std::isnan(out[64 + i])) << kernel.name << " " << bad;
      }
    }
  }
}

TEST(Quantize, ValueAbove127OfATinyBlockIsClamped) {
  // 190 / 127 of the smallest denormal rounds to 1 of it, so the value would be 190.
  constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
  std::vector<float> x(32, 0.0f);
  x[0] = 190 * kSmallest;
  const auto prepared = Prepare(x, 32, 32);
  uint8_t weights[16];
  std::memset(weights, 0x88, sizeof(weights));
  weights[0] = 0x89;  // 1, then zeros
  const float scale = 0x1p100f;
  Expert e;
  e.hidden = e.group = 32;
  e.intermediate = 1;
  e.scale_type = ScaleType::kFp32;
  e.gate = e.up = {weights, reinterpret_cast<const char*>(&scale), 16, 4};
  const float sum = 127 * (kSmallest * 0x1p100f);  // sigmoid(0) is a half to 1e-12
  for (const ExpertKernel& kernel : AllKernels()) {
    if (!kernel.supported(DetectCpuFeatures())) continue;
    EXPECT_FLOAT_EQ(RunTiles(kernel.fc1, e, prepared, 32, 1, 1, 1)[0], sum / 2 * sum);
  }
}

TEST(Quantize, ValuesAndRemaindersAreThoseOfPlainArithmetic) {
  for (const int group : {32, 64, 128}) {
    auto x = RandomRows(1, 3 * group, 1.0f, group);
    x[5] = 0.5f / 127 * 3.0f, x[7] = 3.0f;  // a half: to the even 0, remainder 128 is cut to 127
    const auto prepared = Prepare(x, 3 * group, group);
    // 16 blocks of: factor, fine factor, 8 * sum, 8 * (256 * sum + remainders); then the bytes.
    const char* data = prepared.data();
    const auto* values = reinterpret_cast<const int8_t*>(data + 16 * 16);
    const auto* remainders = values + 16 * group;
    for (int block = 0; block < 3; ++block) {
      float most = 0, factor;
      for (int i = 0; i < group; ++i) most = std::max(most, std::fabs(x[block * group + i]));
      std::memcpy(&factor, data + 4 * block, 4);
      EXPECT_EQ(factor, most / 127.0f);
      int sum = 0, fine = 0;
      for (int i = block * group; i < (block + 1) * group; ++i) {
        const float ratio = x[i] / factor;
        const int value = static_cast<int>(std::nearbyint(ratio));
        const int rest = std::min(127, static_cast<int>(std::nearbyint((ratio - value) * 256)));
        const int at = i / 128 * 128 + i % 2 * 64 + i % 128 / 2;
        EXPECT_EQ(values[at], value) << group << " " << i;
        EXPECT_EQ(remainders[at], rest) << group << " " << i;
        sum += value, fine += 256 * value + rest;
      }
      int32_t eight_sum, fine_eight_sum;
      std::memcpy(&eight_sum, data + 128 + 4 * block, 4);
      std::memcpy(&fine_eight_sum, data + 192 + 4 * block, 4);
      EXPECT_EQ(eight_sum, 8 * sum);
      EXPECT_EQ(fine_eight_sum, 8 * fine);
    }
  }
}

TEST(Swiglu, CloseToTheExactFunction) {
  // Blocks of one weight of value 1 times scale s and one activation: gate = up = the activation.
  uint8_t weights[16];
  std::memset(weights, 0x88, sizeof(weights));
  weights[0] = 0x89;
  const float scale = 1.0f;
  Expert e;
  e.hidden = e.group = 32;
  e.intermediate = 1;
  e.scale_type = ScaleType::kFp32;
  e.gate = e.up = {weights, reinterpret_cast<const char*>(&scale), 16, 4};
  for (int step = 0; step < 433; ++step) {
    const float value = -80.0f + 0.37f * static_cast<float>(step);
    std::vector<float> x(32, 0.0f);
    x[0] = value;
    const double in = 127.0f * (value / 127.0f);  // as quantised
    const double want = in * in / (1 + std::exp(-in));
    const float got = RunTiles(Fc1Scalar, e, Prepare(x, 32, 32), 32, 1, 1, 1)[0];
    EXPECT_NEAR(got, want, 1e-6 * std::fabs(want)) << value;
  }
}

}  // namespace
}  // namespace stoker::offload::cpu
