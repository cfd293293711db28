#include "testing/comparers.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"
#include "comm/wire_type.h"

namespace stoker::testing {
namespace {

float ToFloat(comm::WireType type, uint16_t bits) {
  return type == comm::WireType::kBf16 ? comm::Bf16::ToFloat(bits) : comm::Fp16::ToFloat(bits);
}

}  // namespace

std::string DifferenceInBits(const moe::Shape& shape, const std::vector<uint16_t>& expected,
                             const std::vector<uint16_t>& actual) {
  if (expected.size() != actual.size()) {
    return absl::StrFormat("%d elements where %d are expected", actual.size(), expected.size());
  }
  int64_t count = 0;
  size_t first = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] != actual[i] && count++ == 0) first = i;
  }
  if (count == 0) return "";
  return absl::StrFormat(
      "%d of %d elements differ; first at token %d, column %d: expected %04x (%g), "
      "got %04x (%g)",
      count, expected.size(), first / shape.hidden, first % shape.hidden, expected[first],
      ToFloat(shape.wire_type, expected[first]), actual[first],
      ToFloat(shape.wire_type, actual[first]));
}

ErrorStatistics Errors(comm::WireType type, const std::vector<double>& exact,
                       const std::vector<uint16_t>& actual) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (actual.size() != exact.size()) return {kInfinity, kInfinity};
  ErrorStatistics statistics;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double value = ToFloat(type, actual[i]);
    const bool same = value == exact[i] || (std::isnan(value) && std::isnan(exact[i]));
    double error = same ? 0.0 : std::abs(value - exact[i]);
    if (std::isnan(error)) error = kInfinity;  // or max() would pass over it
    statistics.mean += error;
    statistics.max = std::max(statistics.max, error);
  }
  if (!exact.empty()) statistics.mean /= static_cast<double>(exact.size());
  return statistics;
}

ErrorStatistics RoundingFloor(comm::WireType type, const std::vector<double>& exact) {
  std::vector<uint16_t> rounded(exact.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    const float value = static_cast<float>(exact[i]);
    rounded[i] =
        type == comm::WireType::kBf16 ? comm::Bf16::FromFloat(value) : comm::Fp16::FromFloat(value);
  }
  return Errors(type, exact, rounded);
}

}  // namespace stoker::testing
