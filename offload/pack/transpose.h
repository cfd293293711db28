// From AWQ's and GPTQ's matrices, whose columns are outputs, to rows of outputs. Pure functions;
// sizes are the caller's promise: k and n multiples of 8, k of the group.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace stoker::offload {

struct TransposedSizes {
  int n = 0;  // outputs: rows of the result
  int k = 0;  // inputs
  int group = 0;
};

// [n, k / 2] bytes, low nibble first.
std::string WeightsFromAwq(absl::string_view qweight, const TransposedSizes& sizes);
std::string WeightsFromGptq(absl::string_view qweight, const TransposedSizes& sizes);

// [n / 8, k / group] words, row r in nibble r % 8.
std::string ZerosFromAwq(absl::string_view qzeros, const TransposedSizes& sizes);
// `add_one`: as version 1 of the format stores them.
std::string ZerosFromGptq(absl::string_view qzeros, const TransposedSizes& sizes, bool add_one);

// [k / group, n] elements to [n, k / group].
std::string TransposeScales(absl::string_view scales, const TransposedSizes& sizes,
                            size_t element_bytes);

}  // namespace stoker::offload
