// AVX-512 with VNNI: 64 bytes of weights (4 blocks of 32) an instruction.
#include <immintrin.h>

#include "offload/cpu/generic.h"
#include "offload/cpu/generic_fp32.h"
#include "offload/cpu/kernel.h"

namespace stoker::offload::cpu {
namespace {

struct Avx512Vnni {
  using Ints = __m512i;
  using Floats = __m512;

  static Floats Zero() { return _mm512_setzero_ps(); }
  static Ints NoInts() { return _mm512_setzero_si512(); }
  static void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

  // Masked lanes are not read, so a tail reads nothing beyond its row.
  template <Run kRun>
  static __m512i LoadWeights(const uint8_t* weights, int bytes) {
    if constexpr (kRun == Run::kWhole) return _mm512_loadu_si512(weights);
    const __mmask64 mask = bytes >= 64 ? ~0ull : bytes > 0 ? (1ull << bytes) - 1 : 0;
    return _mm512_maskz_loadu_epi8(mask, weights);
  }

  // Sums of neighbouring int16.
  static __m512i Neighbours(__m512i a) { return _mm512_madd_epi16(a, _mm512_set1_epi16(1)); }

  // Lane l of a[p] and b[p], in two parts each: blocks l and 4 + l, 8 + l and 12 + l. A quarter of
  // a block's dot product is at most 8 * 15 * 128 and a half 2 * 15360 in magnitude: both fit
  // int16, so that packing saturates nothing.
  template <Run kRun, int P>
  static void HalfDots(const uint8_t* weights, int bytes, const int8_t* const* x, __m512i* a,
                       __m512i* b) {
    constexpr int kVectors = kRun == Run::kHalfTail ? 2 : 4;
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512i quarters[P][kVectors];  // vector j, 128-bit lane l: block 4j + l
    for (int j = 0; j < kVectors; ++j) {
      const __m512i w = LoadWeights<kRun>(weights + 64 * j, bytes - 64 * j);
      const __m512i low = _mm512_and_si512(w, nibble);
      const __m512i high = _mm512_and_si512(_mm512_srli_epi16(w, 4), nibble);
      for (int p = 0; p < P; ++p) {
        const __m512i even = _mm512_loadu_si512(x[p] + 128 * j);
        const __m512i odd = _mm512_loadu_si512(x[p] + 128 * j + 64);
        const __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), low, even);
        quarters[p][j] = _mm512_dpbusd_epi32(sum, high, odd);
      }
    }
    for (int p = 0; p < P; ++p) {
      const __m512i* q = quarters[p];
      a[p] = Neighbours(_mm512_packs_epi32(q[0], q[1]));
      b[p] = _mm512_setzero_si512();
      if constexpr (kVectors == 4) b[p] = Neighbours(_mm512_packs_epi32(q[2], q[3]));
    }
  }

  // Lane l of what packing leaves: blocks l, 4 + l, 8 + l, 12 + l.
  static Ints InOrder(__m512i dots) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, dots);
  }

  template <Run kRun, int P>
  static void Dots(const uint8_t* weights, int bytes, const int8_t* const* x, Ints* dots) {
    __m512i a[P], b[P];
    HalfDots<kRun, P>(weights, bytes, x, a, b);
    for (int p = 0; p < P; ++p) dots[p] = InOrder(Neighbours(_mm512_packs_epi32(a[p], b[p])));
  }

  template <Run kRun, int T>
  static void JoinedDots(const uint8_t* weights, int bytes, const int8_t* const* x, Ints* dots) {
    __m512i a[2 * T], b[2 * T];
    HalfDots<kRun, 2 * T>(weights, bytes, x, a, b);
    for (int t = 0; t < T; ++t) {
      const __m512i coarse =
          _mm512_madd_epi16(_mm512_packs_epi32(a[t], b[t]), _mm512_set1_epi16(256));
      dots[t] = InOrder(_mm512_dpwssd_epi32(coarse, _mm512_packs_epi32(a[T + t], b[T + t]),
                                            _mm512_set1_epi16(1)));
    }
  }

  static Ints Pairs(Ints a, Ints b) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_permutex2var_epi32(a, even, b),
                            _mm512_permutex2var_epi32(a, odd, b));
  }

  template <bool kTail>
  static Floats LoadScales(ScaleType type, const char* scales, int count) {
    const __mmask16 used = kTail ? static_cast<__mmask16>((1u << count) - 1) : 0xFFFF;
    if (type == ScaleType::kFp32) return _mm512_maskz_loadu_ps(used, scales);
    const __m256i half = _mm256_maskz_loadu_epi16(used, scales);
    if (type == ScaleType::kFp16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }

  static Ints Join(Ints coarse, Ints fine) {
    return _mm512_add_epi32(_mm512_slli_epi32(coarse, 8), fine);
  }

  static Ints Centre(Ints dots, const char* eight_sums) {
    return _mm512_sub_epi32(dots, _mm512_loadu_si512(eight_sums));
  }
  // Word b of `zeros` holds block b's zero points of eight rows, a nibble each.
  template <bool kTail>
  static Ints CentreBy(Ints dots, const char* eight_sums, const char* zeros, int shift, int count) {
    const __mmask16 used = kTail ? static_cast<__mmask16>((1u << count) - 1) : 0xFFFF;
    const __m512i words = _mm512_maskz_loadu_epi32(used, zeros);
    const __m512i zero =
        _mm512_and_si512(_mm512_srl_epi32(words, _mm_cvtsi32_si128(shift)), _mm512_set1_epi32(15));
    const __m512i sums = _mm512_srai_epi32(_mm512_loadu_si512(eight_sums), 3);
    return _mm512_sub_epi32(dots, _mm512_mullo_epi32(zero, sums));
  }

  static Floats Accumulate(Floats sums, Ints exact, Floats scale, const char* factors) {
    const __m512 factor = _mm512_mul_ps(scale, _mm512_loadu_ps(factors));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), factor, sums);
  }

  // The 16 possible weights of a block.
  using Table = __m512;
  static Table MakeTable(float scale, int zero) {
    const __m512i nibbles = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(nibbles, _mm512_set1_epi32(zero))),
                         _mm512_set1_ps(scale));
  }
  // A byte to each 64 bits, whose low halves then begin with the low nibble, whose high halves with
  // the high one; the look-up takes no other bits.
  static Floats Weights(const uint8_t* bytes, Table table) {
    const __m512i spread =
        _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
    return _mm512_permutexvar_ps(_mm512_or_si512(spread, _mm512_slli_epi64(spread, 28)), table);
  }
  static Floats MultiplyAdd(Floats weights, const float* x, Floats sum) {
    return _mm512_fmadd_ps(weights, _mm512_loadu_ps(x), sum);
  }
  static void Store(Floats floats, float* to) { _mm512_storeu_ps(to, floats); }

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

void Fc1Fp32Avx512Vnni(const Expert& e, const PreparedRows& in, int begin, int end,
                       const OutputRows& out) {
  Fp32Tile<Avx512Vnni, true>(e, in, begin, end, out);
}
void Fc2Fp32Avx512Vnni(const Expert& e, const PreparedRows& in, int begin, int end,
                       const OutputRows& out) {
  Fp32Tile<Avx512Vnni, false>(e, in, begin, end, out);
}

}  // namespace stoker::offload::cpu
