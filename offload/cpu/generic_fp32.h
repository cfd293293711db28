// FP32 activations, once for every vector kernel: element i is added to sum i mod 16, elements
// ascending, sum = fma((nibble - zero) * scale rounded once, x, sum). `Arch` has, besides what
// generic.h asks for: Table and MakeTable(scale, zero), Weights(8 bytes, table) = 16 dequantised
// elements in order, MultiplyAdd(weights, x, sum), Store(floats).
//
// The sums of a row are one chain of dependent FMAs, so several rows are computed at a time.
#pragma once

#include "offload/cpu/generic.h"

namespace stoker::offload::cpu {

// What is the same for all rows of a tile of a matrix with FP32 activations.
struct Fp32Walk {
  ScaleType scale_type;
  int columns, group;
};

// Scales and zero points of 16 blocks of a row.
template <class Arch>
struct BlockParameters {
  alignas(64) float scales[kSums];
  int zeros[kSums];

  void Load(const PackedMatrix& m, const Fp32Walk& walk, int row, int block, int count) {
    const size_t scale_bytes = walk.scale_type == ScaleType::kFp32 ? 4 : 2;
    Arch::Store(Arch::template LoadScales<true>(
                    walk.scale_type, m.scales + row * m.scale_stride + block * scale_bytes, count),
                scales);
    for (int i = 0; i < count; ++i) zeros[i] = ZeroAt(m, row, block + i);
  }
};

// Rows [row, row + R) with T tokens: out[r][t].
template <class Arch, int R, int T>
inline void Fp32Rows(const PackedMatrix& m, const Fp32Walk& walk, int row, const float* const* x,
                     float (*out)[T]) {
  typename Arch::Floats sums[R][T];
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) sums[r][t] = Arch::Zero();
  }
  const int blocks = walk.columns / walk.group;
  for (int first = 0; first < blocks; first += kSums) {
    const int count = blocks - first < kSums ? blocks - first : kSums;
    BlockParameters<Arch> parameters[R];
    for (int r = 0; r < R; ++r) parameters[r].Load(m, walk, row + r, first, count);
    for (int i = 0; i < count; ++i) {
      typename Arch::Table tables[R];
      for (int r = 0; r < R; ++r) {
        tables[r] = Arch::MakeTable(parameters[r].scales[i], parameters[r].zeros[i]);
      }
      const int begin = (first + i) * walk.group;
      for (int k = begin; k < begin + walk.group; k += kSums) {
        for (int r = 0; r < R; ++r) {
          const uint8_t* bytes = m.weights + (row + r) * m.weight_stride + k / 2;
          const typename Arch::Floats weights = Arch::Weights(bytes, tables[r]);
          for (int t = 0; t < T; ++t) {
            sums[r][t] = Arch::MultiplyAdd(weights, x[t] + k, sums[r][t]);
          }
        }
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) out[r][t] = Canonical<Arch>(Arch::Sum(sums[r][t]));
  }
}

// Rows [row, row + rows), at most kRowsAtOnce: out[i][t].
template <class Arch, int T>
inline void Fp32SomeRows(const PackedMatrix& m, const Fp32Walk& walk, int row, int rows,
                         const float* const* x, float (*out)[T]) {
  constexpr int kRows = T == 1 ? 4 : 2;
  int i = 0;
  for (; i + kRows <= rows; i += kRows) Fp32Rows<Arch, kRows, T>(m, walk, row + i, x, out + i);
  for (; i < rows; ++i) Fp32Rows<Arch, 1, T>(m, walk, row + i, x, out + i);
}

template <class Arch, bool kFirst, int T>
inline void Fp32Tokens(const Expert& e, const PreparedRows& in, int token, int begin, int end,
                       const OutputRows& out) {
  const float* x[T];
  for (int t = 0; t < T; ++t) {
    x[t] = reinterpret_cast<const float*>(in.data + (token + t) * in.stride);
  }
  const Fp32Walk walk{e.scale_type, kFirst ? e.hidden : e.intermediate, e.group};
  for (int first = begin; first < end; first += kRowsAtOnce) {
    const int rows = end - first < kRowsAtOnce ? end - first : kRowsAtOnce;
    float result[kRowsAtOnce][T] = {}, up[kRowsAtOnce][T] = {};
    Fp32SomeRows<Arch, T>(kFirst ? e.gate : e.down, walk, first, rows, x, result);
    if constexpr (kFirst) {
      Fp32SomeRows<Arch, T>(e.up, walk, first, rows, x, up);
      for (int i = 0; i < kRowsAtOnce; ++i) {
        for (int t = 0; t < T; ++t) result[i][t] = Activate<Arch>(result[i][t], up[i][t], e.swiglu);
      }
    }
    for (int t = 0; t < T; ++t) {
      float* row = out.data + (token + t) * out.stride + first;
      for (int i = 0; i < rows; ++i) row[i] = result[i][t];
    }
  }
}

template <class Arch, bool kFirst>
void Fp32Tile(const Expert& e, const PreparedRows& in, int begin, int end, const OutputRows& out) {
  int token = 0;
  for (; in.tokens - token >= 4; token += 4) {
    Fp32Tokens<Arch, kFirst, 4>(e, in, token, begin, end, out);
  }
  for (; token < in.tokens; ++token) Fp32Tokens<Arch, kFirst, 1>(e, in, token, begin, end, out);
}

}  // namespace stoker::offload::cpu
