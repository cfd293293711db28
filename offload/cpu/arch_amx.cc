// AMX int8: 16 rows of weights with up to 16 tokens an instruction. Weights are the unsigned left
// matrix, unpacked to bytes for 128 columns at a time; the tokens are the right one, gathered once
// for all rows. Each block's tile of exact int32 sums then goes through the same FMAs as in the
// other kernels, 16 tokens a vector. Few tokens, FP32 activations and rows too long for the buffers
// go to the AVX-512 kernel.
#include <immintrin.h>

#include "offload/cpu/kernel.h"
#include "offload/cpu/prepared_row.h"
#include "offload/cpu/swiglu.h"

namespace stoker::offload::cpu {
namespace {

struct Amx {};

constexpr int kRows = 16, kTokens = 16;
// Below this the AVX-512 kernel is faster (measured).
constexpr int kLeastTokens = 9;
// Columns times planes: bounds the buffers, which lie on the stack.
constexpr int kMostValues = 8192;
constexpr int kChunk = 128;  // columns unpacked at a time

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_a_row[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0 and 3: sums; 1: weights; 2 and 4: values and remainders. A step is 32 or 64 columns.
void Configure(int step) {
  TileConfig config;
  for (const int tile : {0, 1, 2, 3, 4}) {
    const bool right = tile == 2 || tile == 4;
    config.bytes_a_row[tile] = static_cast<uint16_t>(tile == 1 ? step : 4 * kTokens);
    config.rows[tile] = static_cast<uint8_t>(right ? step / 4 : kRows);
  }
  _tile_loadconfig(&config);
}

// Up to 16 prepared rows, token by token in a vector.
struct Gathered {
  // Per 32 columns: 4 words of 4 even values each, then 4 of odd ones, each for 16 tokens.
  alignas(64) int32_t values[kMostValues / 4][kTokens];
  alignas(64) float factors[kMostValues / 32][kTokens];
  alignas(64) int32_t eight_sums[kMostValues / 32][kTokens];

  void Gather(const PreparedRows& in, int token, int tokens, int columns, int group, bool fine) {
    const PreparedLayout layout(columns, group);
    const char* rows = in.data + token * in.stride;
    const __mmask16 used = static_cast<__mmask16>((1u << tokens) - 1);
    const __m512i places =
        _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                           _mm512_set1_epi32(static_cast<int>(in.stride)));
    const auto gather = [&](size_t from, void* to) {
      _mm512_store_si512(
          to, _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), used, places, rows + from, 1));
    };
    for (int plane = 0; plane < (fine ? 2 : 1); ++plane) {
      const size_t start = plane == 0 ? layout.values : layout.remainders;
      for (int word = 0; word < columns / 4; ++word) {
        const size_t even = PreparedLayout::ValueIndex(word / 8 * 32);
        gather(start + even + word % 8 / 4 * 64 + word % 4 * 4, values[plane * columns / 4 + word]);
      }
    }
    for (int block = 0; block < columns / group; ++block) {
      gather((fine ? layout.fine_factors : 0) + 4 * block, factors[block]);
      gather((fine ? layout.fine_eight_sums : layout.eight_sums) + 4 * block, eight_sums[block]);
    }
  }
};

// Scales of `rows` rows as floats.
struct RowScales {
  alignas(64) float values[kRows][kMostValues / 32];

  void Load(const PackedMatrix& m, ScaleType type, int row, int rows, int blocks) {
    for (int r = 0; r < rows; ++r) {
      const char* scales = m.scales + (row + r) * m.scale_stride;
      for (int b = 0; b < blocks; b += 16) {
        const __mmask16 used =
            static_cast<__mmask16>(blocks - b >= 16 ? 0xFFFF : (1u << (blocks - b)) - 1);
        __m512 floats;
        if (type == ScaleType::kFp32) {
          floats = _mm512_maskz_loadu_ps(used, scales + 4 * b);
        } else {
          const __m256i half = _mm256_maskz_loadu_epi16(used, scales + 2 * b);
          floats = type == ScaleType::kFp16
                       ? _mm512_cvtph_ps(half)
                       : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
        }
        _mm512_store_ps(values[r] + b, floats);
      }
    }
  }
};

// 128 columns of a row as bytes: per 32 columns 16 even ones, then 16 odd ones. `bytes` of them are
// there; nothing beyond is read.
void Unpack(const uint8_t* weights, int bytes, uint8_t* to) {
  const __mmask64 used = bytes >= 64 ? ~0ull : (1ull << bytes) - 1;
  const __m512i w = _mm512_maskz_loadu_epi8(used, weights);
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i low = _mm512_and_si512(w, nibble);
  const __m512i high = _mm512_and_si512(_mm512_srli_epi16(w, 4), nibble);
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  _mm512_store_si512(to, _mm512_permutex2var_epi64(low, first, high));
  _mm512_store_si512(to + 64, _mm512_permutex2var_epi64(low, second, high));
}

// Exact sums of 16 rows and 16 tokens over a block.
template <bool kFine>
void BlockSums(const uint8_t* weights, const int32_t* values, size_t plane, int group, int step,
               int32_t (*sums)[kTokens], int32_t (*remainder_sums)[kTokens]) {
  _tile_zero(0);
  if constexpr (kFine) _tile_zero(3);
  for (int k = 0; k < group; k += step) {
    _tile_loadd(1, weights + k, kChunk);
    _tile_loadd(2, values + k / 4 * kTokens, 4 * kTokens);
    _tile_dpbusd(0, 1, 2);
    if constexpr (kFine) {
      _tile_loadd(4, values + plane + k / 4 * kTokens, 4 * kTokens);
      _tile_dpbusd(3, 1, 4);
    }
  }
  _tile_stored(0, sums, 4 * kTokens);
  if constexpr (kFine) _tile_stored(3, remainder_sums, 4 * kTokens);
}

// out[r][t] for rows [row, row + rows) of a matrix, at most 16.
template <bool kFine>
void Product(const PackedMatrix& m, ScaleType type, int columns, int group, const Gathered& in,
             int row, int rows, float (*out)[kTokens]) {
  alignas(64) uint8_t bytes[kRows][kChunk] = {};
  alignas(64) int32_t block_sums[kRows][kTokens], remainder_sums[kRows][kTokens];
  alignas(64) __m512 sums[kSums][kRows] = {};
  RowScales scales;
  const int blocks = columns / group, step = group == 32 ? 32 : 64;
  scales.Load(m, type, row, rows, blocks);
  for (int block = 0; block < blocks; ++block) {
    const int column = block * group, within = column % kChunk;
    if (within == 0) {
      for (int r = 0; r < rows; ++r) {
        Unpack(m.weights + (row + r) * m.weight_stride + column / 2, (columns - column) / 2,
               bytes[r]);
      }
    }
    BlockSums<kFine>(bytes[0] + within, in.values[column / 4],
                     static_cast<size_t>(columns) / 4 * kTokens, group, step, block_sums,
                     remainder_sums);
    const __m512 factors = _mm512_load_ps(in.factors[block]);
    const __m512i eight_sums = _mm512_load_si512(in.eight_sums[block]);
    __m512* partial = sums[block % kSums];
    for (int r = 0; r < rows; ++r) {
      __m512i dots = _mm512_load_si512(block_sums[r]);
      if constexpr (kFine) {
        dots = _mm512_add_epi32(_mm512_slli_epi32(dots, 8), _mm512_load_si512(remainder_sums[r]));
      }
      if (m.zeros == nullptr) {
        dots = _mm512_sub_epi32(dots, eight_sums);
      } else {
        const __m512i zero = _mm512_set1_epi32(ZeroAt(m, row + r, block));
        dots = _mm512_sub_epi32(dots, _mm512_mullo_epi32(zero, _mm512_srai_epi32(eight_sums, 3)));
      }
      const __m512 factor = _mm512_mul_ps(_mm512_set1_ps(scales.values[r][block]), factors);
      partial[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), factor, partial[r]);
    }
  }
  for (int half = kSums / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      for (int r = 0; r < rows; ++r) sums[i][r] = _mm512_add_ps(sums[i][r], sums[i + half][r]);
    }
  }
  for (int r = 0; r < rows; ++r) {
    const __m512 sum = sums[0][r];
    const __mmask16 nan = _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q);
    const __m512 canonical = _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000));
    _mm512_store_ps(out[r], _mm512_mask_mov_ps(sum, nan, canonical));
  }
}

// The tokens that AMX is for; returns how many those were.
template <bool kFirst>
int Tile(const Expert& e, const PreparedRows& in, int begin, int end, const OutputRows& out) {
  const int columns = kFirst ? e.hidden : e.intermediate;
  if (in.tokens < kLeastTokens || columns * (kFirst ? 1 : 2) > kMostValues) return 0;
  Gathered gathered;
  Configure(e.group == 32 ? 32 : 64);
  int token = 0;
  while (in.tokens - token >= kLeastTokens) {
    const int tokens = in.tokens - token < kTokens ? in.tokens - token : kTokens;
    gathered.Gather(in, token, tokens, columns, e.group, !kFirst);
    for (int row = begin; row < end; row += kRows) {
      const int rows = end - row < kRows ? end - row : kRows;
      alignas(64) float result[kRows][kTokens] = {}, up[kRows][kTokens] = {};
      if constexpr (kFirst) {
        Product<false>(e.gate, e.scale_type, columns, e.group, gathered, row, rows, result);
        Product<false>(e.up, e.scale_type, columns, e.group, gathered, row, rows, up);
        for (int r = 0; r < rows; ++r) {
          for (int t = 0; t < kTokens; ++t) {
            result[r][t] = Activate<Amx>(result[r][t], up[r][t], e.swiglu);
          }
        }
      } else {
        Product<true>(e.down, e.scale_type, columns, e.group, gathered, row, rows, result);
      }
      for (int t = 0; t < tokens; ++t) {
        float* to = out.data + (token + t) * out.stride + row;
        for (int r = 0; r < rows; ++r) to[r] = result[r][t];
      }
    }
    token += tokens;
  }
  _tile_release();
  return token;
}

using TokensOfTile = int (*)(const Expert&, const PreparedRows&, int, int, const OutputRows&);

void TileAndRest(TokensOfTile tile, TileFunction rest, const Expert& e, const PreparedRows& in,
                 int begin, int end, const OutputRows& out) {
  const int done = tile(e, in, begin, end, out);
  if (done == in.tokens) return;
  rest(e, {in.data + done * in.stride, in.stride, in.tokens - done}, begin, end,
       {out.data + done * out.stride, out.stride});
}

}  // namespace

void Fc1Amx(const Expert& e, const PreparedRows& in, int begin, int end, const OutputRows& out) {
  TileAndRest(Tile<true>, Fc1Avx512Vnni, e, in, begin, end, out);
}
void Fc2Amx(const Expert& e, const PreparedRows& in, int begin, int end, const OutputRows& out) {
  TileAndRest(Tile<false>, Fc2Avx512Vnni, e, in, begin, end, out);
}
void Fc1Fp32Amx(const Expert& e, const PreparedRows& in, int begin, int end,
                const OutputRows& out) {
  Fc1Fp32Avx512Vnni(e, in, begin, end, out);
}
void Fc2Fp32Amx(const Expert& e, const PreparedRows& in, int begin, int end,
                const OutputRows& out) {
  Fc2Fp32Avx512Vnni(e, in, begin, end, out);
}

}  // namespace stoker::offload::cpu
