// AVX-512 with VNNI: 64 bytes of weights (4 blocks of 32) an instruction.
#include <immintrin.h>

#include "offload/cpu/generic.h"
#include "offload/cpu/kernel.h"

namespace stoker::offload::cpu {
namespace {

struct Avx512Vnni {
  using Ints = __m512i;
  using Floats = __m512;

  static Floats Zero() { return _mm512_setzero_ps(); }

  // Masked lanes are not read, so a tail reads nothing beyond its row.
  template <bool kTail>
  static __m512i LoadWeights(const uint8_t* weights, int bytes) {
    if constexpr (!kTail) return _mm512_loadu_si512(weights);
    const __mmask64 mask = bytes >= 64 ? ~0ull : bytes > 0 ? (1ull << bytes) - 1 : 0;
    return _mm512_maskz_loadu_epi8(mask, weights);
  }

  template <bool kTail, int T>
  static void Dots(const uint8_t* weights, int bytes, const int8_t* const* x, Ints* dots) {
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512i quarters[T][4];  // vector j, 128-bit lane l: block 4j + l, in four parts
    for (int j = 0; j < 4; ++j) {
      const __m512i w = LoadWeights<kTail>(weights + 64 * j, bytes - 64 * j);
      const __m512i low = _mm512_and_si512(w, nibble);
      const __m512i high = _mm512_and_si512(_mm512_srli_epi16(w, 4), nibble);
      for (int t = 0; t < T; ++t) {
        const __m512i even = _mm512_loadu_si512(x[t] + 128 * j);
        const __m512i odd = _mm512_loadu_si512(x[t] + 128 * j + 64);
        const __m512i first = _mm512_dpbusd_epi32(_mm512_setzero_si512(), low, even);
        quarters[t][j] = _mm512_dpbusd_epi32(first, high, odd);
      }
    }
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (int t = 0; t < T; ++t) {
      const __m512i* q = quarters[t];
      const __m512i a =
          _mm512_add_epi32(_mm512_unpacklo_epi32(q[0], q[1]), _mm512_unpackhi_epi32(q[0], q[1]));
      const __m512i b =
          _mm512_add_epi32(_mm512_unpacklo_epi32(q[2], q[3]), _mm512_unpackhi_epi32(q[2], q[3]));
      const __m512i sums =
          _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
      dots[t] = _mm512_permutexvar_epi32(order, sums);
    }
  }

  static Ints Pairs(Ints a, Ints b) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_permutex2var_epi32(a, even, b),
                            _mm512_permutex2var_epi32(a, odd, b));
  }

  template <ScaleType kType, bool kTail>
  static Floats LoadScales(const char* scales, int count) {
    const __mmask16 used = kTail ? static_cast<__mmask16>((1u << count) - 1) : 0xFFFF;
    if constexpr (kType == ScaleType::kFp32) return _mm512_maskz_loadu_ps(used, scales);
    const __m256i half = _mm256_maskz_loadu_epi16(used, scales);
    if constexpr (kType == ScaleType::kFp16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }

  static Floats Accumulate(Floats sums, Ints dots, const char* eight_sums, Floats scale,
                           const char* factors) {
    const __m512i exact = _mm512_sub_epi32(dots, _mm512_loadu_si512(eight_sums));
    const __m512 factor = _mm512_mul_ps(scale, _mm512_loadu_ps(factors));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), factor, sums);
  }

  static float Sum(Floats sums) {
    const __m256 eight =
        _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
};

}  // namespace

void Fc1Avx512Vnni(const Expert& e, const PreparedRows& in, int begin, int end,
                   const OutputRows& out) {
  ByGroup<Avx512Vnni, true>(e, in, begin, end, out);
}
void Fc2Avx512Vnni(const Expert& e, const PreparedRows& in, int begin, int end,
                   const OutputRows& out) {
  ByGroup<Avx512Vnni, false>(e, in, begin, end, out);
}

}  // namespace stoker::offload::cpu
