#include "moe/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "comm/wire_type.h"

namespace stoker::moe {
namespace {

template <class T>
float Scalar(const void* array, ScalarType type, int64_t i) {
  if (type == ScalarType::kFp32) return static_cast<const float*>(array)[i];
  return T::ToFloat(static_cast<const uint16_t*>(array)[i]);
}

template <class T>
Rows Partial(const Shape& shape, const FinalizeArguments& f) {
  const int64_t hidden = shape.hidden;
  Rows partial(shape.tokens * hidden);
  for (int64_t t = 0; t < shape.tokens; ++t) {
    for (int64_t h = 0; h < hidden; ++h) {
      float a = 0.0f;
      for (int64_t k = 0; k < f.top_k; ++k) {
        const int64_t row = f.indices[t * f.top_k + k];
        if (row < 0) continue;
        const float w =
            f.weights == nullptr ? 1.0f : Scalar<T>(f.weights, f.weight_type, t * f.top_k + k);
        a = std::fma(w, Scalar<T>(f.rows, ScalarType::kWire, row * hidden + h), a);
      }
      a = a * f.routed_scaling_factor;
      if (f.shared != nullptr) a = a + Scalar<T>(f.shared, ScalarType::kWire, t * hidden + h);
      if (f.cold != nullptr) a = a + Scalar<T>(f.cold, f.cold_type, t * hidden + h);
      partial[t * hidden + h] = T::FromFloat(a);
    }
  }
  return partial;
}

template <class T>
Rows Partial(const Shape& shape, const ReductionArguments& r) {
  const int64_t hidden = shape.hidden;
  Rows partial(shape.tokens * hidden);
  for (int64_t t = 0; t < shape.tokens; ++t) {
    for (int64_t h = 0; h < hidden; ++h) {
      float a = 0.0f;
      for (int64_t e = 0; e < r.experts; ++e) {
        const int64_t row = e * shape.tokens + t;
        a = std::fma(r.scales[row], Scalar<T>(r.rows, ScalarType::kWire, row * hidden + h), a);
      }
      if (r.shared != nullptr) a = a + Scalar<T>(r.shared, ScalarType::kWire, t * hidden + h);
      partial[t * hidden + h] = T::FromFloat(a);
    }
  }
  return partial;
}

// Halving tree over a power-of-two number of values.
float HalvingSum(std::vector<float> values) {
  for (size_t distance = values.size() / 2; distance > 0; distance /= 2) {
    for (size_t i = 0; i < distance; ++i) values[i] = values[i] + values[i + distance];
  }
  return values[0];
}

float SumOfSquares(const std::vector<float>& x) {
  const size_t vectors = x.size() / 8;
  std::vector<float> warps;
  for (size_t first = 0; first < vectors; first += 32) {
    std::vector<float> lanes(32, 0.0f);
    for (size_t v = first; v < std::min(first + 32, vectors); ++v) {
      for (size_t i = 0; i < 8; ++i)
        lanes[v - first] = std::fma(x[8 * v + i], x[8 * v + i], lanes[v - first]);
    }
    warps.push_back(HalvingSum(lanes));
  }
  warps.resize(std::bit_ceil(warps.size()), 0.0f);
  return HalvingSum(warps);
}

template <class T>
NormResult SumAndNorm(const Shape& shape, const std::vector<Rows>& partials,
                      const NormArguments& norm) {
  const int64_t hidden = shape.hidden;
  const float inverse_hidden = 1.0f / static_cast<float>(hidden);
  NormResult result{Rows(shape.tokens * hidden), Rows(shape.tokens * hidden)};
  std::vector<float> x(hidden);
  for (int64_t t = 0; t < shape.tokens; ++t) {
    for (int64_t h = 0; h < hidden; ++h) {
      const int64_t at = t * hidden + h;
      float sum = T::ToFloat(partials[0][at]);
      for (size_t r = 1; r < partials.size(); ++r) sum = sum + T::ToFloat(partials[r][at]);
      if (norm.mode == comm::Mode::kRounded) sum = T::ToFloat(T::FromFloat(sum));
      if (norm.residual_in != nullptr) {
        sum = sum + Scalar<T>(norm.residual_in, ScalarType::kWire, at);
      }
      result.residual_out[at] = T::FromFloat(sum);
      x[h] = T::ToFloat(result.residual_out[at]);
    }
    const float variance = std::fma(SumOfSquares(x), inverse_hidden, norm.eps);
    const float rstd = 1.0f / std::sqrt(variance);
    for (int64_t h = 0; h < hidden; ++h) {
      const float scale = norm.weight_bias + Scalar<T>(norm.gamma, norm.gamma_type, h);
      result.norm_out[t * hidden + h] = T::FromFloat((x[h] * rstd) * scale);
    }
  }
  return result;
}

}  // namespace

Rows ReferencePartial(const Shape& shape, const FinalizeArguments& finalize) {
  return shape.wire_type == comm::WireType::kBf16 ? Partial<comm::Bf16>(shape, finalize)
                                                  : Partial<comm::Fp16>(shape, finalize);
}

Rows ReferencePartial(const Shape& shape, const ReductionArguments& reduction) {
  return shape.wire_type == comm::WireType::kBf16 ? Partial<comm::Bf16>(shape, reduction)
                                                  : Partial<comm::Fp16>(shape, reduction);
}

NormResult ReferenceSumAndNorm(const Shape& shape, const std::vector<Rows>& partials,
                               const NormArguments& norm) {
  return shape.wire_type == comm::WireType::kBf16 ? SumAndNorm<comm::Bf16>(shape, partials, norm)
                                                  : SumAndNorm<comm::Fp16>(shape, partials, norm);
}

}  // namespace stoker::moe
