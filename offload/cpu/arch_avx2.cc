// AVX2 with FMA and F16C: 32 bytes of weights (2 blocks of 32) an instruction.
#include <immintrin.h>

#include "offload/cpu/generic.h"
#include "offload/cpu/kernel.h"

namespace stoker::offload::cpu {
namespace {

struct Avx2 {
  struct Ints {
    __m256i low, high;  // blocks 0-7, 8-15
  };
  struct Floats {
    __m256 low, high;
  };

  static Floats Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static __m256i Load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

  template <bool kTail>
  static __m256i LoadWeights(const uint8_t* weights, int bytes) {
    if (!kTail || bytes >= 32) return Load(weights);
    if (bytes <= 0) return _mm256_setzero_si256();
    return _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights)));
  }

  // Eight blocks: 128 bytes of weights.
  template <bool kTail>
  static __m256i EightDots(const uint8_t* weights, int bytes, const int8_t* x) {
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i quarters[4];  // vector j, 128-bit lane l: block 2j + l, in four parts
    for (int j = 0; j < 4; ++j) {
      const __m256i w = LoadWeights<kTail>(weights + 32 * j, bytes - 32 * j);
      const int8_t* even = x + j / 2 * 128 + j % 2 * 32;
      const __m256i low = _mm256_maddubs_epi16(_mm256_and_si256(w, nibble), Load(even));
      const __m256i high =
          _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(w, 4), nibble), Load(even + 64));
      // At most 4 * 15 * 127 in magnitude: no 16-bit sum saturates.
      quarters[j] = _mm256_madd_epi16(_mm256_add_epi16(low, high), ones);
    }
    const __m256i sums = _mm256_hadd_epi32(_mm256_hadd_epi32(quarters[0], quarters[1]),
                                           _mm256_hadd_epi32(quarters[2], quarters[3]));
    return _mm256_permutevar8x32_epi32(sums, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }

  template <bool kTail, int T>
  static void Dots(const uint8_t* weights, int bytes, const int8_t* const* x, Ints* dots) {
    for (int t = 0; t < T; ++t) {
      dots[t] = {EightDots<kTail>(weights, bytes, x[t]),
                 EightDots<kTail>(weights + 128, bytes - 128, x[t] + 256)};
    }
  }

  static __m256i Neighbours(__m256i a, __m256i b) {
    return _mm256_permute4x64_epi64(_mm256_hadd_epi32(a, b), 0xD8);
  }
  static Ints Pairs(const Ints& a, const Ints& b) {
    return {Neighbours(a.low, a.high), Neighbours(b.low, b.high)};
  }

  template <ScaleType kType>
  static __m256 EightScales(const char* scales) {
    if constexpr (kType == ScaleType::kFp32) {
      return _mm256_loadu_ps(reinterpret_cast<const float*>(scales));
    }
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
    if constexpr (kType == ScaleType::kFp16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  template <ScaleType kType, bool kTail>
  static Floats LoadScales(const char* scales, int count) {
    constexpr int kBytes = kType == ScaleType::kFp32 ? 32 : 16;
    if constexpr (kTail) {  // a copy, so that nothing is read beyond the row
      alignas(32) char copy[2 * kBytes] = {};
      for (int i = 0; i < count * (kBytes / 8); ++i) copy[i] = scales[i];
      return {EightScales<kType>(copy), EightScales<kType>(copy + kBytes)};
    }
    return {EightScales<kType>(scales), EightScales<kType>(scales + kBytes)};
  }

  static __m256 Eight(__m256 sums, __m256i dots, const char* eight_sums, __m256 scale,
                      const char* factors) {
    const __m256 exact = _mm256_cvtepi32_ps(_mm256_sub_epi32(dots, Load(eight_sums)));
    const __m256 factor =
        _mm256_mul_ps(scale, _mm256_loadu_ps(reinterpret_cast<const float*>(factors)));
    return _mm256_fmadd_ps(exact, factor, sums);
  }
  static Floats Accumulate(const Floats& sums, const Ints& dots, const char* eight_sums,
                           const Floats& scale, const char* factors) {
    return {Eight(sums.low, dots.low, eight_sums, scale.low, factors),
            Eight(sums.high, dots.high, eight_sums + 32, scale.high, factors + 32)};
  }

  static float Sum(const Floats& sums) {
    const __m256 eight = _mm256_add_ps(sums.low, sums.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
};

}  // namespace

void Fc1Avx2(const Expert& e, const PreparedRows& in, int begin, int end, const OutputRows& out) {
  ByGroup<Avx2, true>(e, in, begin, end, out);
}
void Fc2Avx2(const Expert& e, const PreparedRows& in, int begin, int end, const OutputRows& out) {
  ByGroup<Avx2, false>(e, in, begin, end, out);
}

}  // namespace stoker::offload::cpu
