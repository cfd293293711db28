#include "moe/make_params.h"

namespace stoker::moe {

FinalizeParams MakeFinalizeParams(const Shape& shape, const FinalizeArguments& finalize) {
  FinalizeParams params{};
  params.rows = static_cast<const comm::Packet*>(finalize.rows);
  params.indices = finalize.indices;
  params.weights = finalize.weights;
  params.shared = static_cast<const comm::Packet*>(finalize.shared);
  params.cold = finalize.cold;
  params.row_count = finalize.row_count;
  params.packets = shape.hidden / comm::kPacketElements;
  params.top_k = finalize.top_k;
  params.routed_scaling_factor = finalize.routed_scaling_factor;
  params.weights_fp32 = finalize.weight_type == ScalarType::kFp32;
  params.cold_fp32 = finalize.cold_type == ScalarType::kFp32;
  return params;
}

ReductionParams MakeReductionParams(const Shape& shape, const ReductionArguments& reduction) {
  ReductionParams params{};
  params.rows = static_cast<const comm::Packet*>(reduction.rows);
  params.scales = reduction.scales;
  params.shared = static_cast<const comm::Packet*>(reduction.shared);
  params.tokens = shape.tokens;
  params.packets = shape.hidden / comm::kPacketElements;
  params.experts = reduction.experts;
  params.expert_packets = static_cast<uint32_t>(shape.tokens) * params.packets;
  return params;
}

PlainParams MakePlainParams(const Shape& shape, const void* input) {
  PlainParams params{};
  params.input = static_cast<const comm::Packet*>(input);
  params.packets = shape.hidden / comm::kPacketElements;
  return params;
}

RmsNormParams MakeNormParams(const Shape& shape, const NormArguments& norm) {
  RmsNormParams params{};
  params.residual_in = static_cast<const comm::Packet*>(norm.residual_in);
  params.gamma = norm.gamma;
  params.residual_out = static_cast<comm::Packet*>(norm.residual_out);
  params.norm_out = static_cast<comm::Packet*>(norm.norm_out);
  params.tokens = shape.tokens;
  params.packets = shape.hidden / comm::kPacketElements;
  params.inverse_hidden = 1.0f / static_cast<float>(shape.hidden);
  params.eps = norm.eps;
  params.weight_bias = norm.weight_bias;
  params.gamma_fp32 = norm.gamma_type == ScalarType::kFp32;
  params.fp32_residual = norm.mode == comm::Mode::kFp32Residual;
  return params;
}

SumParams MakeSumParams(const Shape& shape, void* output) {
  SumParams params{};
  params.output = static_cast<comm::Packet*>(output);
  params.tokens = shape.tokens;
  params.packets = shape.hidden / comm::kPacketElements;
  return params;
}

comm::ExchangeParams MakeExchangeParams(const comm::ExchangeParams& group, const Shape& shape,
                                        const comm::LaunchDescriptor& descriptor,
                                        const LaunchOptions& options) {
  comm::ExchangeParams params = group;
  params.tokens = shape.tokens;
  params.packets = shape.hidden / comm::kPacketElements;
  params.signature = comm::Signature(descriptor);
  params.early_trigger = options.early_trigger;
  params.log.descriptor = descriptor;
  params.log.signature = params.signature;
  params.log.tokens = shape.tokens;
  return params;
}

}  // namespace stoker::moe
