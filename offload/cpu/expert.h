// The arithmetic of one expert on the CPU: INT4 weights as they lie in a compressed-tensors
// "pack-quantized" checkpoint, int8 activations, FP32 results.
//
//   const ExpertKernel& kernel = PickKernel(DetectCpuFeatures());           // kernel.h
//   QuantizeRow(hidden, shape.hidden, shape.group, prepared);               // once a token
//   kernel.fc1(expert, {prepared, stride, tokens}, 0, 64, {activated, shape.intermediate});
//
// Numbers. Every kernel yields the same bits for a row, whatever the instruction set, the number of
// tokens and the tiling. A block is the group of weights that shares a scale. Its dot product,
// -zero * sum(x) included, is an exact int32; blocks ascend into 16 partial sums by block index mod
// 16, sum = fma(dot, weight scale * activation scale, sum); the 16 are added by halving (8, 4, 2,
// 1). FC1 takes int8 activations. FC2 takes them as 256 * value + remainder, what rounding to int8
// left in a second int8 plane, with a 256th of the scale: the activated row has heavy tails, and a
// single plane cost as much again as FC1's (1.2% of the whole instead of 0.8%). With FP32
// activations (fc1_fp32, fc2_fp32) element i of a row is added to sum i mod 16, sum = fma((nibble -
// zero) * scale rounded once, x, sum), and the 16 by halving. SwiGLU: gate' = min(gate, limit), up'
// = clamp(up, +-limit), gate' * sigmoid(alpha * gate') * (up' + beta), with the exp of swiglu.h. A
// NaN result is 0x7FC00000.
//
// Ownership: views own nothing. Pure functions without threads, allocation or state: thread-safe.
// Weights and scales may lie at any address; nothing beyond a row's extent is read.
// Limits: columns a multiple of the group; group 32, 64 or 128; at most kMaxColumns columns.
// Sizes are the caller's promise (the store checks them), so nothing here can fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace stoker::offload::cpu {

enum class ScaleType { kBf16, kFp16, kFp32 };

inline constexpr int kSums = 16;
// An int32 holds 128 * 15 * 127 many times over; this bounds the buffers of a prepared row.
inline constexpr int kMaxColumns = 1 << 20;

// [rows, columns / 2] bytes, low nibble first, value = nibble - zero, and [rows, columns / group]
// scales. The strides let gate and up be two tensors, two halves of one, or interleaved rows.
// zero is 8, or where `zeros` is given the nibble 4 * (r % 8) of the little-endian 32-bit word
// [r / 8, block] there, as compressed-tensors packs zero points: r = zero_row + row *
// zero_row_step is the row in the stored tensor.
struct PackedMatrix {
  const uint8_t* weights = nullptr;
  const char* scales = nullptr;
  size_t weight_stride = 0;  // bytes from a row to the next
  size_t scale_stride = 0;
  const char* zeros = nullptr;
  size_t zero_stride = 0;  // bytes from eight rows to the next eight
  int zero_row = 0;
  int zero_row_step = 1;
};

struct Swiglu {
  float alpha = 1.0f;
  float beta = 0.0f;
  float limit = std::numeric_limits<float>::infinity();
};

struct Expert {
  int hidden = 0;
  int intermediate = 0;
  int group = 0;
  ScaleType scale_type = ScaleType::kBf16;
  PackedMatrix gate, up, down;
  Swiglu swiglu;
};

// `tokens` rows written by QuantizeRow, `stride` bytes apart, aligned to 4 bytes (faster: 64).
struct PreparedRows {
  const char* data = nullptr;
  size_t stride = 0;
  int tokens = 0;
};

// Row t starts at data + t * stride; element i of it belongs to row i of the weights.
struct OutputRows {
  float* data = nullptr;
  size_t stride = 0;  // elements
};

// Bytes of a prepared row; a multiple of 64.
size_t PreparedBytes(int columns, int group);

// Int8 per block: scale = absmax / 127, values rounded half to even, and what that left in 256ths
// of a step. A non-finite element makes every result of the row NaN. A block whose scale is below
// 256 times the smallest denormal counts as zeros in FC2.
void QuantizeRow(const float* row, int columns, int group, char* prepared);
// The same bytes with SSE2 alone: what CPUs without AVX-512 run, for tests to compare.
void QuantizeRowSse2(const float* row, int columns, int group, char* prepared);

// Computes rows [begin, end) of the activated intermediate (fc1) or of the result (fc2) for all
// tokens, in one pass over the weights for up to 4 tokens.
using TileFunction = void (*)(const Expert& expert, const PreparedRows& in, int begin, int end,
                              const OutputRows& out);

}  // namespace stoker::offload::cpu
