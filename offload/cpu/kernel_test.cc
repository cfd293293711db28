#include "offload/cpu/kernel.h"

#include <sys/mman.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace stoker::offload::cpu {
namespace {

enum class Scales { kOrdinary, kAnyBits };
enum class Zeros { kEight, kStored };

// An expert with random contents; each part ends where a page ends that cannot be read after.
class RandomExpert {
 public:
  RandomExpert(int hidden, int intermediate, int group, ScaleType type, Scales scales, int seed,
               Zeros zeros = Zeros::kEight)
      : random_(seed) {
    expert.hidden = hidden;
    expert.intermediate = intermediate;
    expert.group = group;
    expert.scale_type = type;
    expert.gate = Matrix(intermediate, hidden, scales);
    expert.up = Matrix(intermediate, hidden, scales);
    expert.down = Matrix(hidden, intermediate, scales);
    if (zeros == Zeros::kEight) return;
    // Gate and up as interleaved rows of one tensor, down as a part that starts at row 3.
    expert.gate.zero_stride = expert.up.zero_stride = size_t(hidden / group) * 4;
    expert.gate.zeros = expert.up.zeros = Words((2 * intermediate + 7) / 8, hidden / group);
    expert.gate.zero_row_step = expert.up.zero_row_step = 2;
    expert.up.zero_row = 1;
    expert.down.zero_stride = size_t(intermediate / group) * 4;
    expert.down.zeros = Words((hidden + 3 + 7) / 8, intermediate / group);
    expert.down.zero_row = 3;
  }
  ~RandomExpert() {
    for (const auto& [data, bytes] : maps_) munmap(data, bytes);
  }

  Expert expert;

 private:
  char* AtPageEnd(size_t bytes) {
    const size_t page = sysconf(_SC_PAGESIZE);
    const size_t whole = (bytes + page - 1) / page * page;
    char* base = static_cast<char*>(
        mmap(nullptr, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(base, MAP_FAILED);
    EXPECT_EQ(mprotect(base + whole, page, PROT_NONE), 0);
    maps_.emplace_back(base, whole + page);
    return base + whole - bytes;
  }

  const char* Words(int rows, int columns) {
    char* words = AtPageEnd(size_t(rows) * columns * 4);
    for (int i = 0; i < rows * columns * 4; ++i) words[i] = static_cast<char>(random_());
    return words;
  }

  uint32_t ScaleBits(Scales scales) {
    const uint32_t any = static_cast<uint32_t>(random_());
    if (scales == Scales::kAnyBits) return any;
    const float value = 0.002f + 0.01f * (any >> 8) * 0x1p-24f;
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    // 0.002 to 0.012 in fp16: normal, exponent rebased by 112.
    if (expert.scale_type == ScaleType::kFp16) return (bits >> 13) - (112u << 10);
    return expert.scale_type == ScaleType::kBf16 ? bits >> 16 : bits;
  }

  PackedMatrix Matrix(int rows, int columns, Scales scales) {
    const size_t scale_bytes = expert.scale_type == ScaleType::kFp32 ? 4 : 2;
    const size_t count = static_cast<size_t>(columns / expert.group);
    PackedMatrix m;
    m.weight_stride = columns / 2;
    m.scale_stride = count * scale_bytes;
    char* weights = AtPageEnd(rows * m.weight_stride);
    for (size_t i = 0; i < rows * m.weight_stride; ++i) weights[i] = static_cast<char>(random_());
    char* s = AtPageEnd(rows * m.scale_stride);
    for (size_t i = 0; i < rows * count; ++i) {
      const uint32_t bits = ScaleBits(scales);
      std::memcpy(s + i * scale_bytes, &bits, scale_bytes);
    }
    m.weights = reinterpret_cast<uint8_t*>(weights);
    m.scales = s;
    return m;
  }

  std::mt19937 random_;
  std::vector<std::pair<char*, size_t>> maps_;
};

std::vector<float> RandomRows(int tokens, int columns, float sigma, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, sigma);
  std::vector<float> rows(static_cast<size_t>(tokens) * columns);
  for (float& x : rows) x = normal(random);
  return rows;
}

std::vector<char> Prepare(const std::vector<float>& rows, int columns, int group) {
  const size_t stride = PreparedBytes(columns, group);
  std::vector<char> prepared(rows.size() / columns * stride);
  for (size_t t = 0; t < rows.size() / columns; ++t) {
    QuantizeRow(rows.data() + t * columns, columns, group, prepared.data() + t * stride);
  }
  return prepared;
}

std::vector<float> RunTiles(TileFunction tile, const Expert& e, const std::vector<char>& prepared,
                            int columns, int rows, int tokens, int step) {
  std::vector<float> out(static_cast<size_t>(tokens) * rows, -1.0f);
  const PreparedRows in{prepared.data(), PreparedBytes(columns, e.group), tokens};
  for (int begin = 0; begin < rows; begin += step) {
    tile(e, in, begin, std::min(begin + step, rows), {out.data(), static_cast<size_t>(rows)});
  }
  return out;
}

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
  const CpuFeatures features = DetectCpuFeatures();
  for (const int tokens : c.group == 32 && c.sigma == 1.0f ? std::vector<int>{1, 2, 3, 4, 5, 64}
                                                           : std::vector<int>{1, 6}) {
    const auto x = RandomRows(tokens, c.hidden, c.sigma, tokens);
    const auto y = RandomRows(tokens, c.intermediate, c.sigma, tokens + 100);
    const auto px = Prepare(x, c.hidden, c.group), py = Prepare(y, c.intermediate, c.group);
    const auto want1 = RunTiles(Fc1Scalar, e, px, c.hidden, c.intermediate, tokens, 1000);
    const auto want2 = RunTiles(Fc2Scalar, e, py, c.intermediate, c.hidden, tokens, 1000);
    for (const ExpertKernel& kernel : AllKernels()) {
      if (!kernel.supported(features)) continue;
      const std::string what = std::string(kernel.name) + ", tokens " + std::to_string(tokens);
      ExpectSameBits(RunTiles(kernel.fc1, e, px, c.hidden, c.intermediate, tokens, 7), want1, what);
      ExpectSameBits(RunTiles(kernel.fc2, e, py, c.intermediate, c.hidden, tokens, 64), want2,
                     what);
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
      const int byte = m.zeros[r / 8 * m.zero_stride + k / kGroup * 4 + r % 8 / 2];
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
  for (float value = -80.0f; value < 80.0f; value += 0.37f) {
    std::vector<float> x(32, 0.0f);
    x[0] = value;
    const double in = 127.0f * (value / 127.0f);  // as quantised
    const double want = in * in / (1 + std::exp(-in));
    const float got = RunTiles(Fc1Scalar, e, Prepare(x, 32, 32), 32, 1, 1, 1)[0];
    EXPECT_NEAR(got, want, 1e-6 * std::fabs(want)) << value;
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
  f.avx512 = false;
  EXPECT_STREQ(PickKernel(f).name, "avx2") << "VNNI without the rest";
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
