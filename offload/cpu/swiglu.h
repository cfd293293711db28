// SwiGLU of one element with an exp that gives the same bits wherever it is compiled.
//
// A template over the including file's own tag, so that no two files share a symbol: code that one
// compiled for AVX-512 must not be linked into another that runs without it.
#pragma once

#include <cstdint>
#include <cstring>

#include "offload/cpu/expert.h"

namespace stoker::offload::cpu {

template <class Arch>
inline float Bits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

// Cody-Waite reduction by ln 2 in two parts, then Taylor's polynomial of degree 7 on
// |r| <= ln(2) / 2, whose first omitted term is below 2^-27. The argument is clamped to [-87, 88].
template <class Arch>
inline float Exp(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  x = x > 88.0f ? 88.0f : x < -87.0f ? -87.0f : x;
  const float shifted = __builtin_fmaf(x, 1.44269504f, kRound);
  const float n = shifted - kRound;
  float r = __builtin_fmaf(n, -0.693145751953125f, x);
  r = __builtin_fmaf(n, -1.42860677e-6f, r);
  float p = 1.0f / 5040;
  p = __builtin_fmaf(p, r, 1.0f / 720);
  p = __builtin_fmaf(p, r, 1.0f / 120);
  p = __builtin_fmaf(p, r, 1.0f / 24);
  p = __builtin_fmaf(p, r, 1.0f / 6);
  p = __builtin_fmaf(p, r, 0.5f);
  p = __builtin_fmaf(p, r, 1.0f);
  p = __builtin_fmaf(p, r, 1.0f);
  uint32_t bits;
  __builtin_memcpy(&bits, &shifted, sizeof(bits));
  // The low bits of `shifted` are n; 0x4B400000 << 23 is 0, so only n + 127 remains.
  return p * Bits<Arch>((bits + 127u) << 23);
}

template <class Arch>
inline float Canonical(float x) {
  return x == x ? x : Bits<Arch>(0x7FC00000u);
}

template <class Arch>
inline float Activate(float gate, float up, const Swiglu& s) {
  gate = gate > s.limit ? s.limit : gate;
  up = up > s.limit ? s.limit : up < -s.limit ? -s.limit : up;
  const float sigmoid = 1.0f / (1.0f + Exp<Arch>(-(s.alpha * gate)));
  return Canonical<Arch>((gate * sigmoid) * (up + s.beta));
}

}  // namespace stoker::offload::cpu
