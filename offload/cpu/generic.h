// The loop over rows and blocks, once. `Arch` names the vectors and four operations on them:
//   Ints = 16 int32, Floats = 16 floats, in block order;
//   Dots<kTail, T>(weights, bytes, x[T], out[T]): 16 dot products of 32 unsigned nibbles with 32
//   values; a tail has only `bytes` bytes of weights (a multiple of 16, possibly none), then zeros;
//   Pairs(a, b): sums of neighbours of a, then of b; LoadScales; Accumulate; Sum.
// Included only by the arch_*.cc files, whose Arch has internal linkage (see swiglu.h for why).
#pragma once

#include "offload/cpu/expert.h"
#include "offload/cpu/prepared_row.h"
#include "offload/cpu/swiglu.h"

namespace stoker::offload::cpu {

inline constexpr int kTokensAtOnce = 4;

// Dots of 16 blocks of kGroup.
template <class Arch, int kGroup, bool kTail, int T>
inline void BlockDots(const uint8_t* weights, int bytes, const int8_t* const* x,
                      typename Arch::Ints* dots) {
  if constexpr (kGroup == 32) {
    Arch::template Dots<kTail, T>(weights, bytes, x, dots);
  } else {
    typename Arch::Ints high[T];
    const int8_t* far[T];
    for (int t = 0; t < T; ++t) far[t] = x[t] + 8 * kGroup;
    BlockDots<Arch, kGroup / 2, kTail, T>(weights, bytes, x, dots);
    BlockDots<Arch, kGroup / 2, kTail, T>(weights + 4 * kGroup, bytes - 4 * kGroup, far, high);
    for (int t = 0; t < T; ++t) dots[t] = Arch::Pairs(dots[t], high[t]);
  }
}

// Adds `count` blocks from `block` on to the sums; kTail where they are fewer than 16.
template <class Arch, int kGroup, ScaleType kType, bool kTail, int T>
inline void AddBlocks(const PreparedLayout& layout, const uint8_t* weights, const char* scales,
                      int block, int count, const char* const* prepared,
                      typename Arch::Floats* sums) {
  const int8_t* x[T];
  for (int t = 0; t < T; ++t) {
    x[t] = reinterpret_cast<const int8_t*>(prepared[t] + layout.values) +
           static_cast<size_t>(block) * kGroup;
  }
  typename Arch::Ints dots[T];
  BlockDots<Arch, kGroup, kTail, T>(weights + static_cast<size_t>(block) * (kGroup / 2),
                                    count * (kGroup / 2), x, dots);
  const typename Arch::Floats scale = Arch::template LoadScales<kType, kTail>(
      scales + static_cast<size_t>(block) * (kType == ScaleType::kFp32 ? 4 : 2), count);
  for (int t = 0; t < T; ++t) {
    // Blocks beyond the last add +0. That would change only a sum of -0, and there is none: it
    // starts at +0, and sums and products are multiples of the smallest denormal.
    sums[t] = Arch::Accumulate(sums[t], dots[t], prepared[t] + layout.eight_sums + 4 * block, scale,
                               prepared[t] + 4 * block);
  }
}

template <class Arch, int kGroup, ScaleType kType, int T>
inline void Row(const PackedMatrix& matrix, int row, int columns, const char* const* prepared,
                float* out) {
  const PreparedLayout layout(columns, kGroup);
  const uint8_t* weights = matrix.weights + row * matrix.weight_stride;
  const char* scales = matrix.scales + row * matrix.scale_stride;
  const int blocks = columns / kGroup;
  typename Arch::Floats sums[T];
  for (int t = 0; t < T; ++t) sums[t] = Arch::Zero();
  int block = 0;
  for (; block + kSums <= blocks; block += kSums) {
    AddBlocks<Arch, kGroup, kType, false, T>(layout, weights, scales, block, kSums, prepared, sums);
  }
  if (block < blocks) {
    AddBlocks<Arch, kGroup, kType, true, T>(layout, weights, scales, block, blocks - block,
                                            prepared, sums);
  }
  for (int t = 0; t < T; ++t) out[t] = Canonical<Arch>(Arch::Sum(sums[t]));
}

template <class Arch, int kGroup, ScaleType kType, int T>
inline void Fc1Tokens(const Expert& e, const char* const* prepared, int begin, int end, float* out,
                      size_t stride) {
  for (int row = begin; row < end; ++row) {
    float gate[T], up[T];
    Row<Arch, kGroup, kType, T>(e.gate, row, e.hidden, prepared, gate);
    Row<Arch, kGroup, kType, T>(e.up, row, e.hidden, prepared, up);
    for (int t = 0; t < T; ++t) out[t * stride + row] = Activate<Arch>(gate[t], up[t], e.swiglu);
  }
}

template <class Arch, int kGroup, ScaleType kType, int T>
inline void Fc2Tokens(const Expert& e, const char* const* prepared, int begin, int end, float* out,
                      size_t stride) {
  for (int row = begin; row < end; ++row) {
    float sums[T];
    Row<Arch, kGroup, kType, T>(e.down, row, e.intermediate, prepared, sums);
    for (int t = 0; t < T; ++t) out[t * stride + row] = sums[t];
  }
}

template <class Arch, bool kFirst, int kGroup, ScaleType kType>
void Tile(const Expert& e, const PreparedRows& in, int begin, int end, const OutputRows& out) {
  for (int token = 0; token < in.tokens;) {
    const bool several = in.tokens - token >= kTokensAtOnce;
    const char* prepared[kTokensAtOnce];
    const int count = several ? kTokensAtOnce : 1;
    for (int t = 0; t < count; ++t) prepared[t] = in.data + (token + t) * in.stride;
    float* rows = out.data + token * out.stride;
    if constexpr (kFirst) {
      (several ? Fc1Tokens<Arch, kGroup, kType, kTokensAtOnce>
               : Fc1Tokens<Arch, kGroup, kType, 1>)(e, prepared, begin, end, rows, out.stride);
    } else {
      (several ? Fc2Tokens<Arch, kGroup, kType, kTokensAtOnce>
               : Fc2Tokens<Arch, kGroup, kType, 1>)(e, prepared, begin, end, rows, out.stride);
    }
    token += count;
  }
}

template <class Arch, bool kFirst, int kGroup>
void ByScale(const Expert& e, const PreparedRows& in, int begin, int end, const OutputRows& out) {
  switch (e.scale_type) {
    case ScaleType::kBf16:
      return Tile<Arch, kFirst, kGroup, ScaleType::kBf16>(e, in, begin, end, out);
    case ScaleType::kFp16:
      return Tile<Arch, kFirst, kGroup, ScaleType::kFp16>(e, in, begin, end, out);
    case ScaleType::kFp32:
      return Tile<Arch, kFirst, kGroup, ScaleType::kFp32>(e, in, begin, end, out);
  }
}

template <class Arch, bool kFirst>
void ByGroup(const Expert& e, const PreparedRows& in, int begin, int end, const OutputRows& out) {
  if (e.group == 32) return ByScale<Arch, kFirst, 32>(e, in, begin, end, out);
  if (e.group == 64) return ByScale<Arch, kFirst, 64>(e, in, begin, end, out);
  if (e.group == 128) return ByScale<Arch, kFirst, 128>(e, in, begin, end, out);
  __builtin_trap();  // the caller's bug: the store refuses other groups
}

}  // namespace stoker::offload::cpu
