// Every kernel gives the same bits; which one is picked.
#include "offload/cpu/kernel.h"

#include <xmmintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "offload/cpu/random_expert.h"

namespace stoker::offload::cpu {
namespace {

void ExpectSameBits(const std::vector<float>& got, const std::vector<float>& want,
                    const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    uint32_t a, b;
    std::memcpy(&a, &got[i], 4);
    std::memcpy(&b, &want[i], 4);
    ASSERT_EQ(a, b) << what << " at " << i << ": " << got[i] << ", reference " << want[i];
  }
}

struct Case {
  int hidden, intermediate, group;
  ScaleType type;
  Scales scales;
  float sigma;
  Zeros zeros = Zeros::kEight;
};

class SameBits : public testing::TestWithParam<Case> {};

TEST_P(SameBits, EveryKernelEqualsScalar) {
  const Case& c = GetParam();
  RandomExpert random(c.hidden, c.intermediate, c.group, c.type, c.scales, 17, c.zeros);
  Expert& e = random.expert;
  if (c.scales == Scales::kAnyBits) e.swiglu = {1.702f, 1.0f, 7.0f};
  // Some rows of each matrix are enough.
  const int rows1 = std::min(c.intermediate, 100), rows2 = std::min(c.hidden, 100);
  const CpuFeatures features = DetectCpuFeatures();
  for (const int tokens : c.group == 32 && c.zeros == Zeros::kStored
                              ? std::vector<int>{1, 2, 3, 4, 5, 15, 16, 17, 24, 64}
                              : std::vector<int>{1, 3, 6}) {
    const auto x = RandomRows(tokens, c.hidden, c.sigma, tokens);
    const auto y = RandomRows(tokens, c.intermediate, c.sigma, tokens + 100);
    const auto px = Prepare(x, c.hidden, c.group), py = Prepare(y, c.intermediate, c.group);
    const auto want1 = RunTiles(Fc1Scalar, e, px, c.hidden, rows1, tokens, 1000);
    const auto want2 = RunTiles(Fc2Scalar, e, py, c.intermediate, rows2, tokens, 1000);
    for (const ExpertKernel& kernel : AllKernels()) {
      if (!kernel.supported(features)) continue;
      const std::string what = std::string(kernel.name) + ", tokens " + std::to_string(tokens);
      ExpectSameBits(RunTiles(kernel.fc1, e, px, c.hidden, rows1, tokens, 7), want1, what);
      ExpectSameBits(RunTiles(kernel.fc2, e, py, c.intermediate, rows2, tokens, 64), want2, what);
    }
    const auto fp32_1 = RunFp32Tiles(Fc1Fp32Scalar, e, x, c.hidden, rows1, 1000);
    const auto fp32_2 = RunFp32Tiles(Fc2Fp32Scalar, e, y, c.intermediate, rows2, 1000);
    for (const ExpertKernel& kernel : AllKernels()) {
      if (!kernel.supported(features)) continue;
      const std::string what = std::string(kernel.name) + ", FP32, " + std::to_string(tokens);
      ExpectSameBits(RunFp32Tiles(kernel.fc1_fp32, e, x, c.hidden, rows1, 7), fp32_1, what);
      ExpectSameBits(RunFp32Tiles(kernel.fc2_fp32, e, y, c.intermediate, rows2, 64), fp32_2, what);
    }
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int group : {32, 64, 128}) {
    for (const ScaleType type : {ScaleType::kBf16, ScaleType::kFp16, ScaleType::kFp32}) {
      for (const Scales scales : {Scales::kOrdinary, Scales::kAnyBits}) {
        // 5 blocks and 17: tails of the 16 sums, once below and once above a whole round.
        cases.push_back({5 * group, 17 * group, group, type, scales, 1.0f});
      }
    }
    // 7 and 13 blocks: a half tail and a whole one alone.
    cases.push_back({7 * group, 13 * group, group, ScaleType::kBf16, Scales::kOrdinary, 1.0f});
    for (const ScaleType type : {ScaleType::kBf16, ScaleType::kFp32}) {
      cases.push_back(
          {9 * group, 19 * group, group, type, Scales::kOrdinary, 1.0f, Zeros::kStored});
    }
    // Activations whose scales are denormal: absmax / 127 loses most of its bits.
    cases.push_back({5 * group, 17 * group, group, ScaleType::kFp32, Scales::kAnyBits, 1e-43f});
    cases.push_back({5 * group, 17 * group, group, ScaleType::kFp32, Scales::kAnyBits, 1e38f});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Shapes, SameBits, testing::ValuesIn(Cases()), [](const auto& info) {
  const Case& c = info.param;
  return "group" + std::to_string(c.group) + "_type" + std::to_string(static_cast<int>(c.type)) +
         "_blocks" + std::to_string(c.hidden / c.group) +
         (c.zeros == Zeros::kStored ? "_zeros" : "") +
         (c.scales == Scales::kAnyBits ? "_any" : "_ordinary") +
         (c.sigma < 1   ? "_tiny"
          : c.sigma > 1 ? "_huge"
                        : "_unit");
});

// Rows as they are, with everything that an exponent can be, tiny, huge and not finite.
TEST(QuantizeRow, TheSameBytesWithAndWithoutAvx512) {
  for (const int group : {32, 64, 128}) {
    const int columns = 19 * group;
    std::mt19937 random(group);
    for (int round = 0; round < 200; ++round) {
      const float sigma = std::ldexp(1.0f, round % 20 * 13 - 126);
      std::vector<float> row = RandomRows(1, columns, sigma, round);
      if (round % 3 == 0) {  // halves of a step, which rounding takes to the even side
        for (float& x : row) x = static_cast<float>(static_cast<int>(random() % 509) - 254) * 0.5f;
        row[random() % columns] = 127.0f;
      }
      if (round % 7 == 0) row[random() % columns] = NAN;
      if (round % 11 == 0) row[random() % columns] = -INFINITY;
      std::vector<char> fast(PreparedBytes(columns, group), 1), plain(fast.size(), 2);
      QuantizeRow(row.data(), columns, group, fast.data());
      QuantizeRowSse2(row.data(), columns, group, plain.data());
      ASSERT_EQ(std::memcmp(fast.data(), plain.data(), fast.size()), 0)
          << "group " << group << ", round " << round;
    }
  }
}

TEST(PickKernel, FollowsTheFeatures) {
  CpuFeatures f;
  EXPECT_STREQ(PickKernel(f).name, "scalar");
  f.avx2 = true;
  EXPECT_STREQ(PickKernel(f).name, "scalar") << "no FMA";
  f.fma = f.f16c = true;
  EXPECT_STREQ(PickKernel(f).name, "avx2");
  f.avx512 = true;
  EXPECT_STREQ(PickKernel(f).name, "avx2") << "no VNNI";
  f.avx512_vnni = true;
  EXPECT_STREQ(PickKernel(f).name, "avx512_vnni");
  f.amx_int8 = true;
  EXPECT_STREQ(PickKernel(f).name, "amx");
  f.avx512_vnni = false;
  EXPECT_STREQ(PickKernel(f).name, "avx2") << "AMX without VNNI";
  f.avx512_vnni = true, f.amx_int8 = false;
  f.avx512 = false;
  EXPECT_STREQ(PickKernel(f).name, "avx2") << "VNNI without the rest";
}

TEST(ChooseKernel, ByNameOrAnError) {
  CpuFeatures f;
  f.avx2 = f.fma = f.f16c = true;
  EXPECT_STREQ((*ChooseKernel(f, nullptr))->name, "avx2");
  EXPECT_STREQ((*ChooseKernel(f, ""))->name, "avx2");
  testing::internal::CaptureStderr();
  EXPECT_STREQ((*ChooseKernel(f, "scalar"))->name, "scalar");
  EXPECT_STREQ((*ChooseKernel(f, "scalar"))->name, "scalar");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "stoker: experts run in the kernel scalar, as asked for\n");
  EXPECT_EQ(ChooseKernel(f, "avx512_vnni").status().code(), absl::StatusCode::kFailedPrecondition);
  const absl::Status unknown = ChooseKernel(f, "mmx").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.message().find("avx2, scalar"), std::string::npos) << unknown;
}

TEST(FloatingPointMode, FlushToZeroAndOtherRoundingAreErrors) {
  EXPECT_TRUE(CheckFloatingPointMode().ok());
  const unsigned before = _mm_getcsr();
  for (const unsigned bit : {0x8000u, 0x0040u, 0x2000u}) {
    _mm_setcsr(before | bit);
    const absl::Status status = CheckFloatingPointMode();
    _mm_setcsr(before);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << bit;
  }
}

}  // namespace
}  // namespace stoker::offload::cpu
