#include <cmath>
#include <cstring>

#include "offload/cpu/expert.h"
#include "offload/cpu/prepared_row.h"

namespace stoker::offload::cpu {
namespace {

// Adding and taking away 1.5 * 2^23 rounds |x| < 2^22 half to even.
constexpr float kRoundToInteger = 12582912.0f;

int8_t Quantize(float x, float scale) {
  // The scale of a tiny block may be a denormal rounded far down: then x / scale exceeds 127.
  float ratio = x / scale;
  ratio = ratio > 127.0f ? 127.0f : ratio < -127.0f ? -127.0f : ratio;
  return static_cast<int8_t>((ratio + kRoundToInteger) - kRoundToInteger);
}

}  // namespace

size_t PreparedBytes(int columns, int group) { return PreparedLayout(columns, group).bytes; }

void QuantizeRow(const float* row, int columns, int group, char* prepared) {
  const PreparedLayout layout(columns, group);
  std::memset(prepared, 0, layout.bytes);
  float* factors = reinterpret_cast<float*>(prepared);
  int32_t* eight_sums = reinterpret_cast<int32_t*>(prepared + layout.eight_sums);
  int8_t* values = reinterpret_cast<int8_t*>(prepared + layout.values);
  bool finite = true;
  for (int block = 0; block < columns / group; ++block) {
    const float* in = row + static_cast<size_t>(block) * group;
    float largest = 0.0f;
    for (int i = 0; i < group; ++i) {
      const float size = std::fabs(in[i]);
      finite = finite && size <= std::numeric_limits<float>::max();
      largest = size > largest ? size : largest;
    }
    const float scale = largest / 127.0f;
    factors[block] = scale;
    if (!finite || scale == 0.0f) continue;
    int32_t sum = 0;
    for (int i = 0; i < group; ++i) {
      const int8_t value = Quantize(in[i], scale);
      values[PreparedLayout::ValueIndex(block * group + i)] = value;
      sum += value;
    }
    eight_sums[block] = 8 * sum;
  }
  if (finite) return;
  for (int block = 0; block < columns / group; ++block) factors[block] = std::nanf("");
}

}  // namespace stoker::offload::cpu
