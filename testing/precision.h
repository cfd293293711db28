// A deterministic case in which every rounding that the contract does not have shows: over routes,
// over the shared and the cold row, and over ranks.
//
// In every column the addends cancel in large numbers and leave small ones, so that rounding an
// intermediate sum to 16 bits loses what remains, while FP32 keeps it exactly. Exact results are
// known in closed form, so the check needs no reference of ours.
#pragma once

#include <cstdint>
#include <vector>

#include "moe/arguments.h"
#include "testing/inputs.h"

namespace stoker::testing {

inline constexpr int kPrecisionWorld = 4;
inline constexpr int kPrecisionTopK = 4;

// The shape is 3 tokens of 64 columns, bf16: token 0 cancels over routes, token 1 over the shared
// and the cold row, token 2 over ranks. No residual; routed scaling factor 1; weights 1.
moe::Shape PrecisionShape();
Inputs PrecisionInputs(int rank);

// Empty if residual_out (bit patterns) is within one rounding of the exact sums; else which token,
// so which rounding, is wrong.
std::vector<int> WrongTokens(const std::vector<uint16_t>& residual_out);

}  // namespace stoker::testing
