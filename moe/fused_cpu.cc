#include "moe/fused_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/status.h"
#include "comm/cpu_exchange.h"
#include "comm/wire_type.h"
#include "moe/descriptor.h"
#include "moe/validate.h"

namespace stoker::moe {
namespace {

constexpr int kLanes = 32;

template <class T>
float Scalar(const void* array, ScalarType type, int64_t i) {
  if (type == ScalarType::kFp32) return static_cast<const float*>(array)[i];
  return T::ToFloat(static_cast<const uint16_t*>(array)[i]);
}

// This rank's row of one token, route by route over the whole row.
template <class T>
bool FinalizeRow(const Shape& shape, const FinalizeArguments& f, int64_t token, uint16_t* row,
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

float HalvingSum(float* values, int count) {
  for (int distance = count / 2; distance > 0; distance /= 2) {
    for (int i = 0; i < distance; ++i) values[i] = values[i] + values[i + distance];
  }
  return values[0];
}

// The canonical order of comm/row_reduction.h.
float SumOfSquares(const std::vector<float>& x) {
  const int vectors = static_cast<int>(x.size()) / comm::kPacketElements;
  float warps[64] = {};
  for (int first = 0; first < vectors; first += kLanes) {
    float lanes[kLanes] = {};
    for (int v = first; v < std::min(first + kLanes, vectors); ++v) {
      for (int i = 0; i < comm::kPacketElements; ++i) {
        const float value = x[v * comm::kPacketElements + i];
        lanes[v - first] = std::fma(value, value, lanes[v - first]);
      }
    }
    warps[first / kLanes] = HalvingSum(lanes, kLanes);
  }
  // Padding with +0 to 64 adds +0 to sums that are not negative: the bits stay.
  return HalvingSum(warps, 64);
}

template <class T>
void Normalise(const Shape& shape, const NormArguments& norm, int64_t token, const float* sum) {
  const int64_t hidden = shape.hidden;
  uint16_t* residual_out = static_cast<uint16_t*>(norm.residual_out) + token * hidden;
  uint16_t* norm_out = static_cast<uint16_t*>(norm.norm_out) + token * hidden;
  std::vector<float> x(hidden);
  for (int64_t h = 0; h < hidden; ++h) {
    float value = sum[h];
    if (norm.mode == comm::Mode::kRounded) value = T::ToFloat(T::FromFloat(value));
    if (norm.residual_in != nullptr) {
      value = value + Scalar<T>(norm.residual_in, ScalarType::kWire, token * hidden + h);
    }
    residual_out[h] = T::FromFloat(value);
    x[h] = T::ToFloat(residual_out[h]);
  }
  const float inverse_hidden = 1.0f / static_cast<float>(hidden);
  const float rstd = 1.0f / std::sqrt(std::fma(SumOfSquares(x), inverse_hidden, norm.eps));
  for (int64_t h = 0; h < hidden; ++h) {
    const float scale = norm.weight_bias + Scalar<T>(norm.gamma, norm.gamma_type, h);
    norm_out[h] = T::FromFloat((x[h] * rstd) * scale);
  }
}

absl::Status Launch(comm::CpuCommunicator& communicator, const Shape& shape,
                    const comm::LaunchDescriptor& descriptor, const NormArguments& norm,
                    absl::FunctionRef<bool(int, comm::Packet*, uint64_t*)> produce) {
  const bool bf16 = shape.wire_type == comm::WireType::kBf16;
  const auto consume = [&](int token, const float* sum) {
    bf16 ? Normalise<comm::Bf16>(shape, norm, token, sum)
         : Normalise<comm::Fp16>(shape, norm, token, sum);
  };
  const auto fill_nan = [&] {
    const int64_t elements = static_cast<int64_t>(shape.tokens) * shape.hidden;
    std::fill_n(static_cast<uint16_t*>(norm.residual_out), elements, comm::kStoredNan);
    std::fill_n(static_cast<uint16_t*>(norm.norm_out), elements, comm::kStoredNan);
  };
  return comm::RunOneShot(communicator, {.descriptor = descriptor,
                                         .tokens = shape.tokens,
                                         .packets = shape.hidden / comm::kPacketElements,
                                         .produce = produce,
                                         .consume = consume,
                                         .fill_nan = fill_nan});
}

}  // namespace

absl::Status MoeFinalizeAllReduceRmsNorm(comm::CpuCommunicator& communicator, const Shape& shape,
                                         const FinalizeArguments& finalize,
                                         const NormArguments& norm, const LaunchOptions& options) {
  STOKER_RETURN_IF_ERROR(ValidateFinalize(communicator.plan(), shape, finalize, norm));
  const auto produce = [&](int token, comm::Packet* row, uint64_t* bad_detail) {
    uint16_t* elements = reinterpret_cast<uint16_t*>(row);
    return shape.wire_type == comm::WireType::kBf16
               ? FinalizeRow<comm::Bf16>(shape, finalize, token, elements, bad_detail)
               : FinalizeRow<comm::Fp16>(shape, finalize, token, elements, bad_detail);
  };
  return Launch(communicator, shape,
                DescribeFinalize(shape, finalize, norm, options, communicator.generation()), norm,
                produce);
}

absl::Status AllReduceRmsNorm(comm::CpuCommunicator& communicator, const Shape& shape,
                              const void* input, const NormArguments& norm,
                              const LaunchOptions& options) {
  STOKER_RETURN_IF_ERROR(ValidatePlain(communicator.plan(), shape, input, norm));
  // In place is allowed (norm_out == input): every row has been copied before the first is written.
  const auto produce = [&](int token, comm::Packet* row, uint64_t*) {
    const int64_t bytes = static_cast<int64_t>(shape.hidden) * 2;
    std::memcpy(row, static_cast<const char*>(input) + token * bytes, bytes);
    return true;
  };
  return Launch(communicator, shape, DescribePlain(shape, norm, options, communicator.generation()),
                norm, produce);
}

}  // namespace stoker::moe
