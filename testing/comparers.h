// Comparing rows of 16-bit elements bit for bit, and measuring their error against FP64.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/protocol.h"
#include "moe/arguments.h"

namespace stoker::testing {

// Empty if `actual` equals `expected` bit for bit; otherwise how many elements differ and, of the
// first, token, column, both bit patterns and both values.
std::string DifferenceInBits(const moe::Shape& shape, const std::vector<uint16_t>& expected,
                             const std::vector<uint16_t>& actual);

struct ErrorStatistics {
  double mean = 0.0;
  double max = 0.0;
};

// |actual - exact| over all elements; infinite where one is NaN and the other is not, or if the
// sizes differ. Equal infinities, and NaN where NaN is exact, are no error.
ErrorStatistics Errors(comm::WireType type, const std::vector<double>& exact,
                       const std::vector<uint16_t>& actual);
// The same for the exact result rounded to the type: no kernel with such outputs can be better.
ErrorStatistics RoundingFloor(comm::WireType type, const std::vector<double>& exact);

}  // namespace stoker::testing
