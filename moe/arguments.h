// The arguments of the fused MoE-layer tails, shared by every backend.
//
// Pointers are borrowed for the call (on a GPU: until the launch has completed on its stream) and
// must lie on the communicator's device; 16-byte alignment is required of everything read or
// written as rows. Rows are dense: row i of an array with H columns starts at element i * H. T
// stands for the wire type, bf16 or fp16. An absent array is a null pointer.
#pragma once

#include <cstdint>

#include "comm/protocol.h"

namespace stoker::moe {

// Scalars beside rows of T: routing weights, gamma and the cold addend may be T or FP32.
enum class ScalarType : uint32_t { kWire = 0, kFp32 = 1 };

// What this rank contributes to token t:
//   a = +0;  for k ascending with indices[t, k] >= 0:  a = fma(weights[t, k], rows[indices[t, k]],
//   a) a = a * routed_scaling_factor;  a = a + shared[t];  a = a + cold[t];  partial = round_T(a)
// in FP32, each step rounded once, absent steps left out; absent weights count as 1.
struct FinalizeArguments {
  const void* rows = nullptr;  // [row_count, H] of T: permuted rows, expert by expert
  int64_t row_count = 0;
  const int32_t* indices =
      nullptr;                    // [tokens, top_k]: expanded index -> permuted row; -1 = dropped
  const void* weights = nullptr;  // [tokens, top_k] of weight_type, or absent
  ScalarType weight_type = ScalarType::kWire;
  int32_t top_k = 0;             // 1 .. 32
  const void* shared = nullptr;  // [tokens, H] of T: the shared expert's output, or absent
  const void* cold = nullptr;    // [tokens, H] of cold_type: result of offloaded experts, or absent
  ScalarType cold_type = ScalarType::kWire;
  float routed_scaling_factor = 1.0f;
};

inline constexpr int32_t kReductionExpertsMax = 1024;

// What this rank contributes to token t where each of its active experts has computed every token:
//   a = +0;  for e ascending:  a = fma(scales[e, t], rows[e, t], a)
//   a = a + shared[t];  partial = round_T(a)
// in FP32, each step rounded once, an absent shared row left out. Ranks may have different numbers
// of experts, also none.
struct ReductionArguments {
  const void* rows = nullptr;  // [experts, tokens, H] of T
  const float* scales =
      nullptr;                   // [experts, tokens]: the expert's weight in the token, 0 if unused
  int32_t experts = 0;           // 0 .. kReductionExpertsMax
  const void* shared = nullptr;  // [tokens, H] of T: the shared expert's output, or absent
};

// What every rank does with the sum over ranks (comm::Mode says how it is rounded):
//   x = round_T(sum + residual_in), or sum without a residual;  residual_out = x
//   norm_out = round_T((x * rstd) * (weight_bias + gamma)),  rstd = 1 / sqrt(mean(x^2) + eps)
// (RMSNorm: Zhang and Sennrich, 2019, arXiv:1910.07467). residual_in and gamma must be bitwise
// equal on all ranks. residual_out may be residual_in itself; any other overlap of an output with
// another array is refused.
struct NormArguments {
  const void* residual_in = nullptr;  // [tokens, H] of T, or absent
  const void* gamma = nullptr;        // [H] of gamma_type
  ScalarType gamma_type = ScalarType::kWire;
  float weight_bias = 0.0f;  // 0, or 1 where the checkpoint stores gamma - 1
  float eps = 1e-6f;
  comm::Mode mode = comm::Mode::kRounded;
  void* residual_out = nullptr;  // [tokens, H] of T
  void* norm_out = nullptr;      // [tokens, H] of T
};

struct Shape {
  int32_t tokens = 0;  // 0 .. capacity; equal on all ranks
  int32_t hidden = 0;  // a multiple of 8, 8 .. 16384, at most the communicator's
  comm::WireType wire_type = comm::WireType::kBf16;
};

}  // namespace stoker::moe
