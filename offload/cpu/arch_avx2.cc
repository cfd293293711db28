// AVX2 with FMA and F16C: 32 bytes of weights (2 blocks of 32) an instruction.
#include <immintrin.h>

#include "offload/cpu/generic.h"
#include "offload/cpu/generic_fp32.h"
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

  static Ints NoInts() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
  static Floats Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static __m256i Load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

  template <bool kTail>
  static __m256i LoadWeights(const uint8_t* weights, int bytes) {
    if (!kTail || bytes >= 32) return Load(weights);
    if (bytes <= 0) return _mm256_setzero_si256();
    return _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights)));
  }

  static __m256i NeighbouringWords(__m256i a) { return _mm256_madd_epi16(a, _mm256_set1_epi16(1)); }

  // Eight blocks: 128 bytes of weights.
  template <bool kTail, int P>
  static void EightDots(const uint8_t* weights, int bytes, const int8_t* const* x, int from,
                        __m256i (&dots)[P]) {
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i low[4], high[4];
    for (int j = 0; j < 4; ++j) {
      const __m256i w = LoadWeights<kTail>(weights + 32 * j, bytes - 32 * j);
      low[j] = _mm256_and_si256(w, nibble);
      high[j] = _mm256_and_si256(_mm256_srli_epi16(w, 4), nibble);
    }
    for (int p = 0; p < P; ++p) {
      __m256i quarters[4];  // vector j, 128-bit lane l: block 2j + l, in four parts
      for (int j = 0; j < 4; ++j) {
        const int8_t* even = x[p] + from + j / 2 * 128 + j % 2 * 32;
        // Four products, then eight: at most 8 * 15 * 128 in magnitude, and later twice that. All
        // fit int16, so that nothing saturates.
        quarters[j] =
            NeighbouringWords(_mm256_add_epi16(_mm256_maddubs_epi16(low[j], Load(even)),
                                               _mm256_maddubs_epi16(high[j], Load(even + 64))));
      }
      const __m256i a = NeighbouringWords(_mm256_packs_epi32(quarters[0], quarters[1]));
      const __m256i b = NeighbouringWords(_mm256_packs_epi32(quarters[2], quarters[3]));
      dots[p] = _mm256_permutevar8x32_epi32(NeighbouringWords(_mm256_packs_epi32(a, b)),
                                            _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    }
  }

  template <Run kRun, int P>
  static void Dots(const uint8_t* weights, int bytes, const int8_t* const* x, Ints* dots) {
    constexpr bool kTail = kRun != Run::kWhole;
    __m256i low[P], high[P];
    EightDots<kTail, P>(weights, bytes, x, 0, low);
    if constexpr (kRun != Run::kHalfTail) {
      EightDots<kTail, P>(weights + 128, bytes - 128, x, 256, high);
    }
    for (int p = 0; p < P; ++p) {
      dots[p] = {low[p], kRun == Run::kHalfTail ? _mm256_setzero_si256() : high[p]};
    }
  }

  static __m256i Neighbours(__m256i a, __m256i b) {
    return _mm256_permute4x64_epi64(_mm256_hadd_epi32(a, b), 0xD8);
  }
  static Ints Pairs(const Ints& a, const Ints& b) {
    return {Neighbours(a.low, a.high), Neighbours(b.low, b.high)};
  }

  static __m256 EightScales(ScaleType type, const char* scales) {
    if (type == ScaleType::kFp32) {
      return _mm256_loadu_ps(reinterpret_cast<const float*>(scales));
    }
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
    if (type == ScaleType::kFp16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  template <bool kTail>
  static Floats LoadScales(ScaleType type, const char* scales, int count) {
    const int bytes = type == ScaleType::kFp32 ? 32 : 16;
    if constexpr (kTail) {  // a copy, so that nothing is read beyond the row
      alignas(32) char copy[64] = {};
      for (int i = 0; i < count * (bytes / 8); ++i) copy[i] = scales[i];
      return {EightScales(type, copy), EightScales(type, copy + bytes)};
    }
    return {EightScales(type, scales), EightScales(type, scales + bytes)};
  }

  static __m256i JoinEight(__m256i coarse, __m256i fine) {
    return _mm256_add_epi32(_mm256_slli_epi32(coarse, 8), fine);
  }
  static Ints Join(const Ints& coarse, const Ints& fine) {
    return {JoinEight(coarse.low, fine.low), JoinEight(coarse.high, fine.high)};
  }
  template <Run kRun, int T>
  static void JoinedDots(const uint8_t* weights, int bytes, const int8_t* const* x, Ints* dots) {
    Ints planes[2 * T];
    Dots<kRun, 2 * T>(weights, bytes, x, planes);
    for (int t = 0; t < T; ++t) dots[t] = Join(planes[t], planes[T + t]);
  }

  static Ints Centre(const Ints& dots, const char* eight_sums) {
    return {_mm256_sub_epi32(dots.low, Load(eight_sums)),
            _mm256_sub_epi32(dots.high, Load(eight_sums + 32))};
  }
  // Word b of `zeros` holds block b's zero points of eight rows, a nibble each.
  static __m256i CentreEight(__m256i dots, const char* eight_sums, const char* zeros, int shift) {
    const __m256i zero = _mm256_and_si256(_mm256_srl_epi32(Load(zeros), _mm_cvtsi32_si128(shift)),
                                          _mm256_set1_epi32(15));
    const __m256i sums = _mm256_srai_epi32(Load(eight_sums), 3);
    return _mm256_sub_epi32(dots, _mm256_mullo_epi32(zero, sums));
  }
  template <bool kTail>
  static Ints CentreBy(const Ints& dots, const char* eight_sums, const char* zeros, int shift,
                       int count) {
    alignas(32) char copy[64] = {};
    if constexpr (kTail) {
      __builtin_memcpy(copy, zeros, 4 * count);
      zeros = copy;
    }
    return {CentreEight(dots.low, eight_sums, zeros, shift),
            CentreEight(dots.high, eight_sums + 32, zeros + 32, shift)};
  }

  static __m256 Eight(__m256 sums, __m256i exact, __m256 scale, const char* factors) {
    const __m256 factor =
        _mm256_mul_ps(scale, _mm256_loadu_ps(reinterpret_cast<const float*>(factors)));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), factor, sums);
  }
  static Floats Accumulate(const Floats& sums, const Ints& exact, const Floats& scale,
                           const char* factors) {
    return {Eight(sums.low, exact.low, scale.low, factors),
            Eight(sums.high, exact.high, scale.high, factors + 32)};
  }

  struct Table {
    __m256i zero;
    __m256 scale;
  };
  static Table MakeTable(float scale, int zero) {
    return {_mm256_set1_epi32(zero), _mm256_set1_ps(scale)};
  }
  // Four bytes to 64 bits each, whose halves take the low and the high nibble.
  static __m256 EightWeights(__m128i bytes, const Table& table) {
    const __m256i spread = _mm256_cvtepu8_epi64(bytes);
    const __m256i nibbles = _mm256_and_si256(_mm256_or_si256(spread, _mm256_slli_epi64(spread, 28)),
                                             _mm256_set1_epi32(15));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(nibbles, table.zero)), table.scale);
  }
  static Floats Weights(const uint8_t* bytes, const Table& table) {
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
    return {EightWeights(eight, table), EightWeights(_mm_srli_si128(eight, 4), table)};
  }
  static Floats MultiplyAdd(const Floats& weights, const float* x, const Floats& sum) {
    return {_mm256_fmadd_ps(weights.low, _mm256_loadu_ps(x), sum.low),
            _mm256_fmadd_ps(weights.high, _mm256_loadu_ps(x + 8), sum.high)};
  }
  static void Store(const Floats& floats, float* to) {
    _mm256_storeu_ps(to, floats.low);
    _mm256_storeu_ps(to + 8, floats.high);
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

void Fc1Fp32Avx2(const Expert& e, const PreparedRows& in, int begin, int end,
                 const OutputRows& out) {
  Fp32Tile<Avx2, true>(e, in, begin, end, out);
}
void Fc2Fp32Avx2(const Expert& e, const PreparedRows& in, int begin, int end,
                 const OutputRows& out) {
  Fp32Tile<Avx2, false>(e, in, begin, end, out);
}

}  // namespace stoker::offload::cpu
