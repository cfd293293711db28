// The loop over rows and blocks, once. `Arch` names the vectors and the operations on them:
//   Ints = 16 int32, Floats = 16 floats, in block order;
//   Dots<kRun, P>(weights, bytes, x[P], out[P]): 16 dot products of 32 unsigned nibbles with 32
//   values, for P planes of values; a tail has only `bytes` bytes of weights (a multiple of 16,
//   possibly none), then zeros, and a half tail at most 128;
//   JoinedDots<kRun, T>: the same of 2 * T planes, out[t] = Join(dot of t, dot of T + t);
//   Pairs(a, b): sums of neighbours of a, then of b; Join(a, b) = 256 * a + b;
//   LoadScales; Centre (takes off the zero points); Accumulate; Sum; Prefetch.
// Included only by the arch_*.cc files, whose Arch has internal linkage (see swiglu.h for why).
#pragma once

#include "offload/cpu/expert.h"
#include "offload/cpu/prepared_row.h"
#include "offload/cpu/swiglu.h"

namespace stoker::offload::cpu {

// Rows whose sums are activated together: whole vectors, and several whose long chains of
// operations overlap.
inline constexpr int kRowsAtOnce = 64;
// How far ahead weights are fetched: a hardware prefetcher stops at each page.
inline constexpr size_t kAheadBytes = 1024;

// 16 blocks, 9 to 15, or at most 8.
enum class Run { kWhole, kTail, kHalfTail };

// Dots of 16 blocks of kGroup, from those of blocks of 32.
template <class Arch, int kGroup, Run kRun, int P>
inline void BlockDots(const uint8_t* weights, int bytes, const int8_t* const* x,
                      typename Arch::Ints* dots) {
  if constexpr (kGroup == 32) {
    Arch::template Dots<kRun, P>(weights, bytes, x, dots);
  } else {
    constexpr Run kPart = kRun == Run::kWhole ? Run::kWhole : Run::kTail;
    constexpr int kUsed = kRun == Run::kHalfTail ? kGroup / 64 : kGroup / 32;
    typename Arch::Ints parts[kGroup / 32][P];
    for (int i = kUsed; i < kGroup / 32; ++i) {
      for (int p = 0; p < P; ++p) parts[i][p] = Arch::NoInts();
    }
    const int8_t* from[P];
    for (int p = 0; p < P; ++p) from[p] = x[p];
#pragma GCC unroll 1  // compilers would unroll it into much code that is no faster
    for (int i = 0; i < kUsed; ++i) {
      Arch::template Dots<kPart, P>(weights + 256 * i, bytes - 256 * i, from, parts[i]);
      for (int p = 0; p < P; ++p) from[p] += 512;
    }
    for (int n = kGroup / 64; n > 0; n /= 2) {
      for (int i = 0; i < n; ++i) {
        for (int p = 0; p < P; ++p) parts[i][p] = Arch::Pairs(parts[2 * i][p], parts[2 * i + 1][p]);
      }
    }
    for (int p = 0; p < P; ++p) dots[p] = parts[0][p];
  }
}

// What is the same for all rows of a tile of a matrix.
struct Walk {
  PreparedLayout layout;
  ScaleType scale_type;  // at run time: the branch is always the same, and the code a third
  int blocks, end;
  int ahead_rows;
  ptrdiff_t ahead, scales_ahead;

  [[gnu::always_inline]] Walk(const PackedMatrix& m, ScaleType type, int columns, int group,
                              int end_row)
      : layout(columns, group),
        scale_type(type),
        blocks(columns / group),
        end(end_row),
        ahead_rows(static_cast<int>((kAheadBytes + m.weight_stride - 1) / m.weight_stride)) {
    const ptrdiff_t stored = (kAheadBytes + columns / 2 - 1) / (columns / 2);
    ahead = stored * (columns / 2);
    scales_ahead =
        stored * static_cast<ptrdiff_t>(m.scale_stride) * (columns / 2) / m.weight_stride;
  }
};

// A row of a matrix, and the distance to the bytes to fetch for a later one.
struct RowOfMatrix {
  const uint8_t* weights;
  const char* scales;
  const char* zeros = nullptr;  // of this row's group of eight, or null
  int zero_shift = 0;
  ptrdiff_t ahead, scales_ahead;

  [[gnu::always_inline]] RowOfMatrix(const PackedMatrix& m, const Walk& walk, int row)
      : weights(m.weights + row * m.weight_stride), scales(m.scales + row * m.scale_stride) {
    if (m.zeros != nullptr) {
      const int stored = m.zero_row + row * m.zero_row_step;
      zeros = m.zeros + stored / 8 * m.zero_stride;
      zero_shift = stored % 8 * 4;
    }
    const bool inside = row + walk.ahead_rows < walk.end;  // none beyond the tile
    ahead = inside ? walk.ahead : 0;
    scales_ahead = inside ? walk.scales_ahead : 0;
  }
};

// Adds `count` blocks from `block` on to the sums. kFine: the remainders take part too.
template <class Arch, int kGroup, Run kRun, bool kFine, int T>
inline void AddBlocks(const Walk& walk, const RowOfMatrix& row, int block, int count,
                      const char* const* prepared, typename Arch::Floats* sums) {
  constexpr int kPlanes = kFine ? 2 * T : T;
  const uint8_t* weights = row.weights + static_cast<size_t>(block) * (kGroup / 2);
  const char* scales =
      row.scales + static_cast<size_t>(block) * (walk.scale_type == ScaleType::kFp32 ? 4 : 2);
  for (int i = 0; i < kSums * kGroup / 2; i += 64) Arch::Prefetch(weights + row.ahead + i);
  Arch::Prefetch(scales + row.scales_ahead);
  const int8_t* x[kPlanes];
  const size_t first = static_cast<size_t>(block) * kGroup;
  for (int t = 0; t < T; ++t) {
    x[t] = reinterpret_cast<const int8_t*>(prepared[t] + walk.layout.values) + first;
    if constexpr (kFine) {
      x[T + t] = reinterpret_cast<const int8_t*>(prepared[t] + walk.layout.remainders) + first;
    }
  }
  typename Arch::Ints dots[kPlanes];
  if constexpr (kFine && kGroup == 32) {
    Arch::template JoinedDots<kRun, T>(weights, count * (kGroup / 2), x, dots);
  } else {
    BlockDots<Arch, kGroup, kRun, kPlanes>(weights, count * (kGroup / 2), x, dots);
  }
  const typename Arch::Floats scale =
      Arch::template LoadScales<kRun != Run::kWhole>(walk.scale_type, scales, count);
  const size_t factors = kFine ? walk.layout.fine_factors : 0;
  const size_t eight_sums = kFine ? walk.layout.fine_eight_sums : walk.layout.eight_sums;
  for (int t = 0; t < T; ++t) {
    if constexpr (kFine && kGroup != 32) dots[t] = Arch::Join(dots[t], dots[T + t]);
    const char* sums_of_x = prepared[t] + eight_sums + 4 * block;
    const typename Arch::Ints exact =
        row.zeros == nullptr
            ? Arch::Centre(dots[t], sums_of_x)
            : Arch::template CentreBy<kRun != Run::kWhole>(
                  dots[t], sums_of_x, row.zeros + 4 * block, row.zero_shift, count);
    // Blocks beyond the last add +0. That would change only a sum of -0, and there is none: it
    // starts at +0, and sums and products are multiples of the smallest denormal.
    sums[t] = Arch::Accumulate(sums[t], exact, scale, prepared[t] + factors + 4 * block);
  }
}

template <class Arch, int kGroup, bool kFine, int T>
inline void Row(const PackedMatrix& matrix, const Walk& walk, int row, const char* const* prepared,
                float* out, size_t stride) {
  const RowOfMatrix where(matrix, walk, row);
  const int blocks = walk.blocks;
  typename Arch::Floats sums[T];
  for (int t = 0; t < T; ++t) sums[t] = Arch::Zero();
  int block = 0;
  for (; block + kSums <= blocks; block += kSums) {
    AddBlocks<Arch, kGroup, Run::kWhole, kFine, T>(walk, where, block, kSums, prepared, sums);
  }
  if (blocks - block > kSums / 2) {
    AddBlocks<Arch, kGroup, Run::kTail, kFine, T>(walk, where, block, blocks - block, prepared,
                                                  sums);
  } else if (block < blocks) {
    AddBlocks<Arch, kGroup, Run::kHalfTail, kFine, T>(walk, where, block, blocks - block, prepared,
                                                      sums);
  }
  for (int t = 0; t < T; ++t) out[t * stride] = Canonical<Arch>(Arch::Sum(sums[t]));
}

template <class Arch, int kGroup, int T>
inline void Fc1Tokens(const Expert& e, const char* const* prepared, int begin, int end, float* out,
                      size_t stride) {
  const Walk walk(e.gate, e.scale_type, e.hidden, kGroup, end);
  for (int first = begin; first < end; first += kRowsAtOnce) {
    const int rows = end - first < kRowsAtOnce ? end - first : kRowsAtOnce;
    float gate[T][kRowsAtOnce] = {}, up[T][kRowsAtOnce] = {};
    // Where the rows of gate and up alternate they are one stream: two places of it at a time.
    const int step =
        e.gate.weight_stride > static_cast<size_t>(e.hidden) / 2 ? (rows + 1) / 2 : rows;
    for (int i = 0; i < step; ++i) {
      for (int r = i; r < rows; r += step) {
        Row<Arch, kGroup, false, T>(e.gate, walk, first + r, prepared, &gate[0][r], kRowsAtOnce);
        Row<Arch, kGroup, false, T>(e.up, walk, first + r, prepared, &up[0][r], kRowsAtOnce);
      }
    }
    for (int t = 0; t < T; ++t) {
      float activated[kRowsAtOnce];
      for (int i = 0; i < kRowsAtOnce; ++i) {
        activated[i] = Activate<Arch>(gate[t][i], up[t][i], e.swiglu);
      }
      __builtin_memcpy(out + t * stride + first, activated, rows * sizeof(float));
    }
  }
}

template <class Arch, int kGroup, int T>
inline void Fc2Tokens(const Expert& e, const char* const* prepared, int begin, int end, float* out,
                      size_t stride) {
  const Walk walk(e.down, e.scale_type, e.intermediate, kGroup, end);
  // From two places at a time, as FC1 does by nature: a core has more reads in flight then.
  const int rows = end - begin, half = (rows + 1) / 2;
  for (int i = 0; i < half; ++i) {
    for (int row = begin + i; row < end; row += half) {
      Row<Arch, kGroup, true, T>(e.down, walk, row, prepared, out + row, stride);
    }
  }
}

template <class Arch, bool kFirst, int kGroup, int T>
inline void Tokens(const Expert& e, const PreparedRows& in, int token, int begin, int end,
                   const OutputRows& out) {
  const char* prepared[T];
  for (int t = 0; t < T; ++t) prepared[t] = in.data + (token + t) * in.stride;
  float* rows = out.data + token * out.stride;
  if constexpr (kFirst) {
    Fc1Tokens<Arch, kGroup, T>(e, prepared, begin, end, rows, out.stride);
  } else {
    Fc2Tokens<Arch, kGroup, T>(e, prepared, begin, end, rows, out.stride);
  }
}

template <class Arch, bool kFirst, int kGroup>
void Tile(const Expert& e, const PreparedRows& in, int begin, int end, const OutputRows& out) {
  int token = 0;
  for (; in.tokens - token >= 4; token += 4) {
    Tokens<Arch, kFirst, kGroup, 4>(e, in, token, begin, end, out);
  }
  if (in.tokens - token == 3) {
    Tokens<Arch, kFirst, kGroup, 3>(e, in, token, begin, end, out);
    return;
  }
  if (in.tokens - token >= 2) {
    Tokens<Arch, kFirst, kGroup, 2>(e, in, token, begin, end, out);
    token += 2;
  }
  if (token < in.tokens) Tokens<Arch, kFirst, kGroup, 1>(e, in, token, begin, end, out);
}

template <class Arch, bool kFirst>
void ByGroup(const Expert& e, const PreparedRows& in, int begin, int end, const OutputRows& out) {
  if (e.group == 32) return Tile<Arch, kFirst, 32>(e, in, begin, end, out);
  if (e.group == 64) return Tile<Arch, kFirst, 64>(e, in, begin, end, out);
  if (e.group == 128) return Tile<Arch, kFirst, 128>(e, in, begin, end, out);
  __builtin_trap();  // the caller's bug: the store refuses other groups
}

}  // namespace stoker::offload::cpu
