#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "offload/cpu/expert.h"
#include "offload/cpu/prepared_row.h"

namespace stoker::offload::cpu {
namespace {

constexpr float kLargestFloat = std::numeric_limits<float>::max();

// SSE2, which every x86-64 has: GCC makes scalar code of the plain loops. And once more with
// AVX-512: between FC1 and FC2 a row waits for this while nothing is read from memory.

__m128 Clamp(__m128 x, float low, float high) {
  return _mm_max_ps(_mm_min_ps(x, _mm_set1_ps(high)), _mm_set1_ps(low));
}

__m128i Sum(__m128i sum, __m128i words) {
  return _mm_add_epi32(sum, _mm_madd_epi16(words, _mm_set1_epi16(1)));
}

int32_t Total(__m128i sum) {
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1)));
}

// 16 int8 in the order of the row: the even ones to `even`, the odd ones 64 bytes further.
void Separate(__m128i bytes, char* even) {
  const __m128i low = _mm_and_si128(bytes, _mm_set1_epi16(255));
  const __m128i both = _mm_packus_epi16(low, _mm_srli_epi16(bytes, 8));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(even), both);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(even + 64), _mm_srli_si128(both, 8));
}

struct Sums {
  int32_t values, remainders;
};

// Conversion rounds half to even: CheckFloatingPointMode sees to that.
Sums Quantize(const float* in, int group, float scale, char* values, char* remainders) {
  const __m128 divisor = _mm_set1_ps(scale);
  __m128i sum = _mm_setzero_si128(), remainder_sum = _mm_setzero_si128();
  for (int i = 0; i < group; i += 16) {
    __m128i value[4], remainder[4];
    for (int j = 0; j < 4; ++j) {
      // The scale of a tiny block may be a denormal rounded far down: then x / scale exceeds 127.
      const __m128 ratio =
          Clamp(_mm_div_ps(_mm_loadu_ps(in + i + 4 * j), divisor), -127.0f, 127.0f);
      value[j] = _mm_cvtps_epi32(ratio);
      const __m128 rest = _mm_sub_ps(ratio, _mm_cvtepi32_ps(value[j]));
      // At most half a step, 128; packing makes 127 of that, which is what an int8 holds.
      remainder[j] = _mm_cvtps_epi32(_mm_mul_ps(rest, _mm_set1_ps(256.0f)));
    }
    const __m128i v0 = _mm_packs_epi32(value[0], value[1]);
    const __m128i v1 = _mm_packs_epi32(value[2], value[3]);
    const __m128i most = _mm_set1_epi16(127);
    const __m128i r0 = _mm_min_epi16(_mm_packs_epi32(remainder[0], remainder[1]), most);
    const __m128i r1 = _mm_min_epi16(_mm_packs_epi32(remainder[2], remainder[3]), most);
    sum = Sum(Sum(sum, v0), v1);
    remainder_sum = Sum(Sum(remainder_sum, r0), r1);
    Separate(_mm_packs_epi16(v0, v1), values + i / 2);
    Separate(_mm_packs_epi16(r0, r1), remainders + i / 2);
  }
  return {Total(sum), Total(remainder_sum)};
}

// The largest magnitude; a NaN counts as more than any number.
float Largest(const float* in, int group) {
  const __m128i sign = _mm_set1_epi32(0x7FFFFFFF);
  __m128i largest = _mm_setzero_si128();  // patterns of magnitudes are ordered as those are
  for (int i = 0; i < group; i += 4) {
    const __m128i bits =
        _mm_and_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)), sign);
    const __m128i more = _mm_cmpgt_epi32(bits, largest);
    largest = _mm_or_si128(_mm_and_si128(more, bits), _mm_andnot_si128(more, largest));
  }
  alignas(16) int32_t lanes[4];
  _mm_store_si128(reinterpret_cast<__m128i*>(lanes), largest);
  const int32_t most = std::max(std::max(lanes[0], lanes[1]), std::max(lanes[2], lanes[3]));
  float size;
  std::memcpy(&size, &most, sizeof(size));
  return size;
}

#define STOKER_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]]

STOKER_AVX512 float LargestAvx512(const float* in, int group) {
  const __m512i sign = _mm512_set1_epi32(0x7FFFFFFF);
  __m512i largest = _mm512_setzero_si512();
  for (int i = 0; i < group; i += 16) {
    largest = _mm512_max_epi32(largest, _mm512_and_si512(_mm512_loadu_si512(in + i), sign));
  }
  const int32_t most = _mm512_reduce_max_epi32(largest);
  float size;
  std::memcpy(&size, &most, sizeof(size));
  return size;
}

// Step for step what Quantize does.
STOKER_AVX512 Sums QuantizeAvx512(const float* in, int group, float scale, char* values,
                                  char* remainders) {
  const __m512 divisor = _mm512_set1_ps(scale);
  const __m512 most = _mm512_set1_ps(127.0f), least = _mm512_set1_ps(-127.0f);
  __m512i sum = _mm512_setzero_si512(), remainder_sum = _mm512_setzero_si512();
  for (int i = 0; i < group; i += 16) {
    __m512 ratio = _mm512_div_ps(_mm512_loadu_ps(in + i), divisor);
    ratio = _mm512_max_ps(_mm512_min_ps(ratio, most), least);
    const __m512i value = _mm512_cvtps_epi32(ratio);
    const __m512 rest = _mm512_sub_ps(ratio, _mm512_cvtepi32_ps(value));
    const __m512i remainder = _mm512_min_epi32(
        _mm512_cvtps_epi32(_mm512_mul_ps(rest, _mm512_set1_ps(256.0f))), _mm512_set1_epi32(127));
    sum = _mm512_add_epi32(sum, value);
    remainder_sum = _mm512_add_epi32(remainder_sum, remainder);
    Separate(_mm512_cvtepi32_epi8(value), values + i / 2);
    Separate(_mm512_cvtepi32_epi8(remainder), remainders + i / 2);
  }
  return {_mm512_reduce_add_epi32(sum), _mm512_reduce_add_epi32(remainder_sum)};
}

using LargestFunction = float (*)(const float* in, int group);
using QuantizeFunction = Sums (*)(const float* in, int group, float scale, char* values,
                                  char* remainders);

template <LargestFunction kLargest, QuantizeFunction kQuantize>
[[gnu::always_inline]] inline void Row(const float* row, int columns, int group, char* prepared) {
  const PreparedLayout layout(columns, group);
  std::memset(prepared, 0, layout.bytes);
  float* factors = reinterpret_cast<float*>(prepared);
  float* fine_factors = reinterpret_cast<float*>(prepared + layout.fine_factors);
  int32_t* eight_sums = reinterpret_cast<int32_t*>(prepared + layout.eight_sums);
  int32_t* fine_eight_sums = reinterpret_cast<int32_t*>(prepared + layout.fine_eight_sums);
  bool finite = true;
  for (int block = 0; block < columns / group; ++block) {
    const float* in = row + static_cast<size_t>(block) * group;
    const float largest = kLargest(in, group);
    finite &= largest <= kLargestFloat;
    const float scale = largest / 127.0f;
    factors[block] = scale;
    fine_factors[block] = scale / 256.0f;
    if (!finite || scale == 0.0f) continue;
    const size_t even = PreparedLayout::ValueIndex(block * group);
    const Sums sums = kQuantize(in, group, scale, prepared + layout.values + even,
                                prepared + layout.remainders + even);
    eight_sums[block] = 8 * sums.values;
    fine_eight_sums[block] = 8 * (256 * sums.values + sums.remainders);
  }
  if (finite) return;
  for (int block = 0; block < columns / group; ++block) {
    factors[block] = fine_factors[block] = std::nanf("");
  }
}

void RowSse2(const float* row, int columns, int group, char* prepared) {
  Row<Largest, Quantize>(row, columns, group, prepared);
}

STOKER_AVX512 void RowAvx512(const float* row, int columns, int group, char* prepared) {
  Row<LargestAvx512, QuantizeAvx512>(row, columns, group, prepared);
}

bool HasAvx512() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace

size_t PreparedBytes(int columns, int group) { return PreparedLayout(columns, group).bytes; }

void QuantizeRowSse2(const float* row, int columns, int group, char* prepared) {
  RowSse2(row, columns, group, prepared);
}

void QuantizeRow(const float* row, int columns, int group, char* prepared) {
  static const auto quantize = HasAvx512() ? RowAvx512 : RowSse2;
  quantize(row, columns, group, prepared);
}

}  // namespace stoker::offload::cpu
