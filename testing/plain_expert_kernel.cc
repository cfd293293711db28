#include "testing/plain_expert_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace stoker::testing {
namespace {

using offload::ExpertView;
using offload::PreparedTokens;
using offload::ScaleType;

constexpr int kSums = 16;

float Fp16ToFloat(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(bits & 1023), -24)
                                        : std::ldexp(1024.0f + (bits & 1023), exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

float Scale(const char* scales, size_t index, ScaleType type) {
  if (type == ScaleType::kFp32) {
    float value;
    std::memcpy(&value, scales + 4 * index, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, scales + 2 * index, sizeof(bits));
  if (type == ScaleType::kFp16) return Fp16ToFloat(bits);
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// One row of weights with a prepared row: exact int32 in a group, groups into 16 sums. Activations
// are int8 or, if `fine`, int8 and a remainder in 256ths.
float Dot(const char* weights, const char* scales, ScaleType type, int row, int columns, int group,
          const char* prepared, bool fine) {
  const int groups = columns / group;
  const float* factors = reinterpret_cast<const float*>(prepared);
  const int8_t* values = reinterpret_cast<const int8_t*>(factors + groups);
  const int8_t* rests = values + columns;
  const auto activation = [&](int i) { return fine ? 256 * values[i] + rests[i] : values[i]; };
  const uint8_t* packed =
      reinterpret_cast<const uint8_t*>(weights) + static_cast<size_t>(row) * columns / 2;
  float sums[kSums] = {};
  for (int g = 0; g < groups; ++g) {
    int32_t dot = 0;
    for (int i = g * group; i < (g + 1) * group; i += 2) {
      dot += ((packed[i / 2] & 15) - 8) * activation(i);
      dot += ((packed[i / 2] >> 4) - 8) * activation(i + 1);
    }
    const float factor = Scale(scales, static_cast<size_t>(row) * groups + g, type) *
                         (fine ? factors[g] / 256.0f : factors[g]);
    sums[g % kSums] = std::fma(static_cast<float>(dot), factor, sums[g % kSums]);
  }
  for (int half = kSums / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

}  // namespace

size_t PlainExpertKernel::PreparedBytes(int columns, int group) const {
  const size_t bytes = sizeof(float) * (columns / group) + 2 * columns;
  return (bytes + 63) / 64 * 64;
}

void PlainExpertKernel::Prepare(const float* row, int columns, int group, char* prepared) const {
  const int groups = columns / group;
  float* factors = reinterpret_cast<float*>(prepared);
  int8_t* values = reinterpret_cast<int8_t*>(factors + groups);
  int8_t* rests = values + columns;
  for (int g = 0; g < groups; ++g) {
    float largest = 0;
    bool finite = true;
    for (int i = g * group; i < (g + 1) * group; ++i) {
      finite = finite && std::isfinite(row[i]);
      largest = std::max(largest, std::fabs(row[i]));
    }
    const float scale = largest / 127.0f;
    // A NaN factor makes every dot product of the row NaN.
    factors[g] = finite ? scale : std::nanf("");
    for (int i = g * group; i < (g + 1) * group; ++i) {
      const float ratio = finite && scale > 0 ? row[i] / scale : 0.0f;
      const float value = std::nearbyint(ratio);
      values[i] = static_cast<int8_t>(value);
      rests[i] = static_cast<int8_t>(std::min(std::nearbyint((ratio - value) * 256), 127.0f));
    }
  }
}

void PlainExpertKernel::Fc1(const ExpertView& expert, const PreparedTokens& in, int begin, int end,
                            float* out, size_t out_stride) const {
  const auto& s = expert.shape;
  for (int token = 0; token < in.tokens; ++token) {
    const char* prepared = in.data + token * in.stride;
    for (int row = begin; row < end; ++row) {
      const float gate = Dot(expert.parts[offload::kGate], expert.parts[offload::kGateScale],
                             s.scale_type, row, s.hidden, s.group, prepared, false);
      const float up = Dot(expert.parts[offload::kUp], expert.parts[offload::kUpScale],
                           s.scale_type, row, s.hidden, s.group, prepared, false);
      out[token * out_stride + row] = gate / (1.0f + std::exp(-gate)) * up;
    }
  }
}

void PlainExpertKernel::Fc2(const ExpertView& expert, const PreparedTokens& in, int begin, int end,
                            float* out, size_t out_stride) const {
  const auto& s = expert.shape;
  for (int token = 0; token < in.tokens; ++token) {
    for (int row = begin; row < end; ++row) {
      out[token * out_stride + row] =
          Dot(expert.parts[offload::kDown], expert.parts[offload::kDownScale], s.scale_type, row,
              s.intermediate, s.group, in.data + token * in.stride, true);
    }
  }
}

}  // namespace stoker::testing
