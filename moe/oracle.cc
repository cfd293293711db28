#include "moe/oracle.h"

#include <cmath>
#include <cstdint>
#include <thread>

#include "comm/wire_type.h"

namespace stoker::moe {
namespace {

template <class T>
double Scalar(const void* array, ScalarType type, int64_t i) {
  if (type == ScalarType::kFp32) return static_cast<const float*>(array)[i];
  return T::ToFloat(static_cast<const uint16_t*>(array)[i]);
}

template <class T>
void AddRank(const Shape& shape, const FinalizeArguments& f, int64_t t, double* sum) {
  const int64_t hidden = shape.hidden;
  std::vector<double> routed(hidden, 0.0);
  for (int64_t k = 0; k < f.top_k; ++k) {
    const int64_t row = f.indices[t * f.top_k + k];
    if (row < 0) continue;
    const double w =
        f.weights == nullptr ? 1.0 : Scalar<T>(f.weights, f.weight_type, t * f.top_k + k);
    const uint16_t* values = static_cast<const uint16_t*>(f.rows) + row * hidden;
    for (int64_t h = 0; h < hidden; ++h)
      routed[h] += w * static_cast<double>(T::ToFloat(values[h]));
  }
  for (int64_t h = 0; h < hidden; ++h) {
    sum[h] += routed[h] * f.routed_scaling_factor;
    if (f.shared != nullptr) sum[h] += Scalar<T>(f.shared, ScalarType::kWire, t * hidden + h);
    if (f.cold != nullptr) sum[h] += Scalar<T>(f.cold, f.cold_type, t * hidden + h);
  }
}

template <class T>
void Token(const Shape& shape, const std::vector<FinalizeArguments>& ranks,
           const NormArguments& norm, int64_t t, OracleResult& result) {
  const int64_t hidden = shape.hidden;
  double* x = &result.residual_out[t * hidden];
  for (const FinalizeArguments& rank : ranks) AddRank<T>(shape, rank, t, x);
  double squares = 0.0;
  for (int64_t h = 0; h < hidden; ++h) {
    if (norm.residual_in != nullptr) {
      x[h] += Scalar<T>(norm.residual_in, ScalarType::kWire, t * hidden + h);
    }
    squares += x[h] * x[h];
  }
  const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(hidden) + norm.eps);
  for (int64_t h = 0; h < hidden; ++h) {
    result.norm_out[t * hidden + h] =
        x[h] * rstd * (norm.weight_bias + Scalar<T>(norm.gamma, norm.gamma_type, h));
  }
}

}  // namespace

OracleResult OracleFinalize(const Shape& shape, const std::vector<FinalizeArguments>& ranks,
                            const NormArguments& norm) {
  OracleResult result;
  result.residual_out.resize(static_cast<int64_t>(shape.tokens) * shape.hidden);
  result.norm_out.resize(result.residual_out.size());
  const auto half = [&](int parity) {
    for (int64_t t = parity; t < shape.tokens; t += 2) {
      if (shape.wire_type == comm::WireType::kBf16) {
        Token<comm::Bf16>(shape, ranks, norm, t, result);
      } else {
        Token<comm::Fp16>(shape, ranks, norm, t, result);
      }
    }
  };
  std::thread other(half, 1);
  half(0);
  other.join();
  return result;
}

}  // namespace stoker::moe
