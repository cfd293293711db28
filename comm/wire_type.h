// The two 16-bit types that rows travel in, and their rounding, for host and device.
//
// Rounding is IEEE round to nearest even without flush to zero; overflow gives an infinity and
// every NaN becomes 0x7FFF. That is what the GPU's cvt.rn instructions produce, so a row has the
// same bits wherever it was computed.
#pragma once

#include <cstdint>

#include "comm/protocol.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace stoker::comm {

STOKER_HOST_DEVICE float FloatFromBits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}
STOKER_HOST_DEVICE uint32_t BitsFromFloat(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  return __builtin_bit_cast(uint32_t, value);
#endif
}

struct Bf16 {
  static constexpr WireType kType = WireType::kBf16;

  STOKER_HOST_DEVICE static float ToFloat(uint16_t bits) {
    return FloatFromBits(static_cast<uint32_t>(bits) << 16);
  }
  STOKER_HOST_DEVICE static uint16_t FromFloat(float value) {
#if defined(__CUDA_ARCH__)
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
    const uint32_t bits = BitsFromFloat(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return kStoredNan;
    return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
#endif
  }
};

struct Fp16 {
  static constexpr WireType kType = WireType::kFp16;

  STOKER_HOST_DEVICE static float ToFloat(uint16_t bits) {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(bits));
#else
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t magnitude = bits & 0x7FFFu;
    if (magnitude >= 0x7C00u) return FloatFromBits(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
    if (magnitude < 0x0400u) {  // subnormal: magnitude * 2^-24 is exact in FP32
      const float value = static_cast<float>(magnitude) * 0x1p-24f;
      return FloatFromBits(sign | BitsFromFloat(value));
    }
    return FloatFromBits(sign | ((magnitude + (112u << 10)) << 13));
#endif
  }
  STOKER_HOST_DEVICE static uint16_t FromFloat(float value) {
#if defined(__CUDA_ARCH__)
    return __half_as_ushort(__float2half_rn(value));
#else
    const uint32_t bits = BitsFromFloat(value);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
    if (magnitude > 0x7F800000u) return kStoredNan;
    if (magnitude >= 0x477FF000u) return sign | 0x7C00u;  // rounds above 65504
    if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24, rounded by the FP32 adder
      const float rounded = FloatFromBits(magnitude) + 0.5f;
      return sign | static_cast<uint16_t>(BitsFromFloat(rounded) - 0x3F000000u);
    }
    const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    return sign | static_cast<uint16_t>((rounded - (112u << 23)) >> 13);
#endif
  }
};

// Two elements in a word, the lower-indexed one in the lower half.
template <class T>
STOKER_HOST_DEVICE void Unpack(uint32_t word, float& low, float& high) {
#if defined(__CUDA_ARCH__)
  if constexpr (T::kType == WireType::kBf16) {
    low = __uint_as_float(word << 16);
    high = __uint_as_float(word & 0xFFFF0000u);
    return;
  }
#endif
  low = T::ToFloat(static_cast<uint16_t>(word & 0xFFFFu));
  high = T::ToFloat(static_cast<uint16_t>(word >> 16));
}

template <class T>
STOKER_HOST_DEVICE uint32_t Pack(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t word;
  if constexpr (T::kType == WireType::kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
#else
  return static_cast<uint32_t>(T::FromFloat(low)) | static_cast<uint32_t>(T::FromFloat(high)) << 16;
#endif
}

}  // namespace stoker::comm
