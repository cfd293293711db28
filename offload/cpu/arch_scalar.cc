// Plain loops, a nibble at a time: the reference of the other kernels, and what runs on a CPU that
// none of them supports. It shares with them the prepared row and SwiGLU, not the loops.
#include "offload/cpu/kernel.h"
#include "offload/cpu/prepared_row.h"
#include "offload/cpu/swiglu.h"

namespace stoker::offload::cpu {
namespace {

struct Scalar {};

float Fp16(uint16_t bits) {
  const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
  float size = fraction * 0x1p-24f;
  if (exponent == 31) size = Bits<Scalar>(0x7F800000u | fraction << 13);
  if (exponent > 0 && exponent < 31) size = Bits<Scalar>((exponent + 112) << 23 | fraction << 13);
  return (bits & 0x8000) != 0 ? -size : size;
}

float ScaleAt(const char* scales, int index, ScaleType type) {
  if (type == ScaleType::kFp32) {
    float value;
    __builtin_memcpy(&value, scales + 4 * static_cast<size_t>(index), sizeof(value));
    return value;
  }
  uint16_t bits;
  __builtin_memcpy(&bits, scales + 2 * static_cast<size_t>(index), sizeof(bits));
  return type == ScaleType::kFp16 ? Fp16(bits) : Bits<Scalar>(static_cast<uint32_t>(bits) << 16);
}

float Total(float* sums) {
  for (int half = kSums / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return Canonical<Scalar>(sums[0]);
}

// `fine`: values are 256 * value + remainder, in 256ths of a step.
float Dot(const Expert& e, const PackedMatrix& matrix, int row, int columns, const char* prepared,
          bool fine) {
  const PreparedLayout layout(columns, e.group);
  const float* factors =
      reinterpret_cast<const float*>(prepared + (fine ? layout.fine_factors : 0));
  const int8_t* values = reinterpret_cast<const int8_t*>(prepared + layout.values);
  const int8_t* remainders = reinterpret_cast<const int8_t*>(prepared + layout.remainders);
  const uint8_t* weights = matrix.weights + row * matrix.weight_stride;
  const char* scales = matrix.scales + row * matrix.scale_stride;
  float sums[kSums] = {};
  for (int block = 0; block < columns / e.group; ++block) {
    const int zero = ZeroAt(matrix, row, block);
    int32_t dot = 0;
    for (int k = block * e.group; k < (block + 1) * e.group; ++k) {
      const int nibble = weights[k / 2] >> (k % 2 * 4) & 15;
      const size_t at = PreparedLayout::ValueIndex(k);
      dot += (nibble - zero) * (fine ? 256 * values[at] + remainders[at] : values[at]);
    }
    const float factor = ScaleAt(scales, block, e.scale_type) * factors[block];
    float& sum = sums[block % kSums];
    sum = __builtin_fmaf(static_cast<float>(dot), factor, sum);
  }
  return Total(sums);
}

float Fp32Dot(const Expert& e, const PackedMatrix& matrix, int row, int columns, const float* x) {
  const uint8_t* weights = matrix.weights + row * matrix.weight_stride;
  const char* scales = matrix.scales + row * matrix.scale_stride;
  float sums[kSums] = {};
  for (int k = 0; k < columns; ++k) {
    const int nibble = weights[k / 2] >> (k % 2 * 4) & 15;
    const int block = k / e.group;
    const float scale = ScaleAt(scales, block, e.scale_type);
    const float weight = static_cast<float>(nibble - ZeroAt(matrix, row, block)) * scale;
    sums[k % kSums] = __builtin_fmaf(weight, x[k], sums[k % kSums]);
  }
  return Total(sums);
}

const float* Fp32Row(const PreparedRows& in, int token) {
  return reinterpret_cast<const float*>(in.data + token * in.stride);
}

}  // namespace

void Fc1Scalar(const Expert& e, const PreparedRows& in, int begin, int end, const OutputRows& out) {
  for (int t = 0; t < in.tokens; ++t) {
    const char* prepared = in.data + t * in.stride;
    for (int row = begin; row < end; ++row) {
      out.data[t * out.stride + row] =
          Activate<Scalar>(Dot(e, e.gate, row, e.hidden, prepared, false),
                           Dot(e, e.up, row, e.hidden, prepared, false), e.swiglu);
    }
  }
}

void Fc2Scalar(const Expert& e, const PreparedRows& in, int begin, int end, const OutputRows& out) {
  for (int t = 0; t < in.tokens; ++t) {
    for (int row = begin; row < end; ++row) {
      out.data[t * out.stride + row] =
          Dot(e, e.down, row, e.intermediate, in.data + t * in.stride, true);
    }
  }
}

void Fc1Fp32Scalar(const Expert& e, const PreparedRows& in, int begin, int end,
                   const OutputRows& out) {
  for (int t = 0; t < in.tokens; ++t) {
    const float* x = Fp32Row(in, t);
    for (int row = begin; row < end; ++row) {
      out.data[t * out.stride + row] = Activate<Scalar>(
          Fp32Dot(e, e.gate, row, e.hidden, x), Fp32Dot(e, e.up, row, e.hidden, x), e.swiglu);
    }
  }
}

void Fc2Fp32Scalar(const Expert& e, const PreparedRows& in, int begin, int end,
                   const OutputRows& out) {
  for (int t = 0; t < in.tokens; ++t) {
    for (int row = begin; row < end; ++row) {
      out.data[t * out.stride + row] = Fp32Dot(e, e.down, row, e.intermediate, Fp32Row(in, t));
    }
  }
}

}  // namespace stoker::offload::cpu
