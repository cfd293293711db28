// This rank's row of a token on the CPU, route by route over the whole row.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "comm/wire_type.h"
#include "moe/arguments.h"

namespace stoker::moe {

template <class T>
float Scalar(const void* array, ScalarType type, int64_t i) {
  if (type == ScalarType::kFp32) return static_cast<const float*>(array)[i];
  return T::ToFloat(static_cast<const uint16_t*>(array)[i]);
}

// False if an index of the token is not below row_count: the row is NaN throughout, and
// `bad_detail` holds the number of rows and the last such index (comm/health_page.h).
template <class T>
bool FinalizeRowOf(const Shape& shape, const FinalizeArguments& f, int64_t token, uint16_t* row,
                   uint64_t* bad_detail) {
  const int64_t hidden = shape.hidden;
  std::vector<float> sum(hidden, 0.0f);
  bool good = true;
  for (int64_t k = 0; k < f.top_k; ++k) {
    const int64_t route = token * f.top_k + k;
    const int64_t index = f.indices[route];
    if (index >= f.row_count) {
      *bad_detail = static_cast<uint64_t>(f.row_count) << 32 | static_cast<uint32_t>(index);
      good = false;
    }
    if (index < 0 || index >= f.row_count) continue;
    const float w = f.weights == nullptr ? 1.0f : Scalar<T>(f.weights, f.weight_type, route);
    const uint16_t* expert = static_cast<const uint16_t*>(f.rows) + index * hidden;
    for (int64_t h = 0; h < hidden; ++h) sum[h] = std::fma(w, T::ToFloat(expert[h]), sum[h]);
  }
  for (int64_t h = 0; h < hidden; ++h) {
    const int64_t at = token * hidden + h;
    float value = sum[h] * f.routed_scaling_factor;
    if (f.shared != nullptr) value = value + Scalar<T>(f.shared, ScalarType::kWire, at);
    if (f.cold != nullptr) value = value + Scalar<T>(f.cold, f.cold_type, at);
    row[h] = good ? T::FromFloat(value) : comm::kStoredNan;
  }
  return good;
}

template <class T>
void ReductionRowOf(const Shape& shape, const ReductionArguments& r, int64_t token, uint16_t* row) {
  const int64_t hidden = shape.hidden;
  std::vector<float> sum(hidden, 0.0f);
  for (int64_t e = 0; e < r.experts; ++e) {
    const int64_t route = e * shape.tokens + token;
    const uint16_t* expert = static_cast<const uint16_t*>(r.rows) + route * hidden;
    for (int64_t h = 0; h < hidden; ++h) {
      sum[h] = std::fma(r.scales[route], T::ToFloat(expert[h]), sum[h]);
    }
  }
  for (int64_t h = 0; h < hidden; ++h) {
    if (r.shared != nullptr) {
      sum[h] = sum[h] + Scalar<T>(r.shared, ScalarType::kWire, token * hidden + h);
    }
    row[h] = T::FromFloat(sum[h]);
  }
}

inline void ReductionRow(const Shape& shape, const ReductionArguments& reduction, int64_t token,
                         uint16_t* row) {
  shape.wire_type == comm::WireType::kBf16
      ? ReductionRowOf<comm::Bf16>(shape, reduction, token, row)
      : ReductionRowOf<comm::Fp16>(shape, reduction, token, row);
}

inline bool FinalizeRow(const Shape& shape, const FinalizeArguments& finalize, int64_t token,
                        uint16_t* row, uint64_t* bad_detail) {
  return shape.wire_type == comm::WireType::kBf16
             ? FinalizeRowOf<comm::Bf16>(shape, finalize, token, row, bad_detail)
             : FinalizeRowOf<comm::Fp16>(shape, finalize, token, row, bad_detail);
}

}  // namespace stoker::moe
