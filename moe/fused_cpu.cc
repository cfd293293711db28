#include "moe/fused_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "base/status.h"
#include "comm/cpu_exchange.h"
#include "comm/wire_type.h"
#include "moe/cpu_producers.h"
#include "moe/descriptor.h"
#include "moe/validate.h"

namespace stoker::moe {
namespace {

constexpr int kLanes = 32;

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

template <class T>
void StoreSum(const Shape& shape, void* output, int64_t token, const float* sum) {
  uint16_t* out = static_cast<uint16_t*>(output) + token * shape.hidden;
  for (int64_t h = 0; h < shape.hidden; ++h) out[h] = T::FromFloat(sum[h]);
}

using Produce = absl::FunctionRef<bool(int, comm::Packet*, uint64_t*)>;

// `outputs` are what becomes NaN after a failure.
absl::Status Launch(comm::CpuCommunicator& communicator, const Shape& shape,
                    const comm::LaunchDescriptor& descriptor, Produce produce,
                    absl::FunctionRef<void(int, const float*)> consume,
                    std::initializer_list<void*> outputs) {
  const auto fill_nan = [&] {
    const int64_t elements = static_cast<int64_t>(shape.tokens) * shape.hidden;
    for (void* output : outputs) {
      std::fill_n(static_cast<uint16_t*>(output), elements, comm::kStoredNan);
    }
  };
  return comm::RunOneShot(communicator, {.descriptor = descriptor,
                                         .tokens = shape.tokens,
                                         .packets = shape.hidden / comm::kPacketElements,
                                         .produce = produce,
                                         .consume = consume,
                                         .fill_nan = fill_nan});
}

absl::Status LaunchNorm(comm::CpuCommunicator& communicator, const Shape& shape,
                        const comm::LaunchDescriptor& descriptor, const NormArguments& norm,
                        Produce produce) {
  const bool bf16 = shape.wire_type == comm::WireType::kBf16;
  const auto consume = [&](int token, const float* sum) {
    bf16 ? Normalise<comm::Bf16>(shape, norm, token, sum)
         : Normalise<comm::Fp16>(shape, norm, token, sum);
  };
  return Launch(communicator, shape, descriptor, produce, consume,
                {norm.residual_out, norm.norm_out});
}

// The caller's rows. In place is allowed: every row has been copied before the first is written.
auto Rows(const Shape& shape, const void* input) {
  return [&shape, input](int token, comm::Packet* row, uint64_t*) {
    const int64_t bytes = static_cast<int64_t>(shape.hidden) * 2;
    std::memcpy(row, static_cast<const char*>(input) + token * bytes, bytes);
    return true;
  };
}

}  // namespace

absl::Status MoeFinalizeAllReduceRmsNorm(comm::CpuCommunicator& communicator, const Shape& shape,
                                         const FinalizeArguments& finalize,
                                         const NormArguments& norm, const LaunchOptions& options) {
  STOKER_RETURN_IF_ERROR(ValidateFinalize(communicator.plan(), shape, finalize, norm));
  const auto produce = [&](int token, comm::Packet* row, uint64_t* bad_detail) {
    return FinalizeRow(shape, finalize, token, reinterpret_cast<uint16_t*>(row), bad_detail);
  };
  return LaunchNorm(communicator, shape,
                    DescribeFinalize(shape, finalize, norm, options, communicator.generation()),
                    norm, produce);
}

absl::Status MoeReduceAllReduceRmsNorm(comm::CpuCommunicator& communicator, const Shape& shape,
                                       const ReductionArguments& reduction,
                                       const NormArguments& norm, const LaunchOptions& options) {
  STOKER_RETURN_IF_ERROR(ValidateReduction(communicator.plan(), shape, reduction, norm));
  const auto produce = [&](int token, comm::Packet* row, uint64_t*) {
    ReductionRow(shape, reduction, token, reinterpret_cast<uint16_t*>(row));
    return true;
  };
  return LaunchNorm(communicator, shape,
                    DescribeReduction(shape, norm, options, communicator.generation()), norm,
                    produce);
}

absl::Status AllReduceRmsNorm(comm::CpuCommunicator& communicator, const Shape& shape,
                              const void* input, const NormArguments& norm,
                              const LaunchOptions& options) {
  STOKER_RETURN_IF_ERROR(ValidatePlain(communicator.plan(), shape, input, norm));
  return LaunchNorm(communicator, shape,
                    DescribePlain(shape, norm, options, communicator.generation()), norm,
                    Rows(shape, input));
}

absl::Status AllReduce(comm::CpuCommunicator& communicator, const Shape& shape, const void* input,
                       void* output, const LaunchOptions& options) {
  STOKER_RETURN_IF_ERROR(ValidateAllReduce(communicator.plan(), shape, input, output));
  const bool bf16 = shape.wire_type == comm::WireType::kBf16;
  const auto consume = [&](int token, const float* sum) {
    bf16 ? StoreSum<comm::Bf16>(shape, output, token, sum)
         : StoreSum<comm::Fp16>(shape, output, token, sum);
  };
  return Launch(communicator, shape, DescribeAllReduce(shape, options, communicator.generation()),
                Rows(shape, input), consume, {output});
}

}  // namespace stoker::moe
