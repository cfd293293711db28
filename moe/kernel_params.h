// The kernel parameters of the producers and the epilogue: moe/arguments.h as the device wants it.
#pragma once

#include <cstdint>

#include "comm/protocol.h"

namespace stoker::moe {

struct FinalizeParams {
  const comm::Packet* rows;
  const int32_t* indices;
  const void* weights;  // null: every weight is 1
  const comm::Packet* shared;
  const void* cold;
  int64_t row_count;
  int32_t packets;  // per row
  int32_t top_k;
  float routed_scaling_factor;
  uint32_t weights_fp32;
  uint32_t cold_fp32;
};

struct ReductionParams {
  const comm::Packet* rows;
  const float* scales;
  const comm::Packet* shared;
  int32_t tokens;
  int32_t packets;  // per row
  int32_t experts;
  uint32_t expert_packets;  // from one expert's row of a token to the next one's
};

struct PlainParams {
  const comm::Packet* input;
  int32_t packets;  // per row
};

struct SumParams {
  comm::Packet* output;
  int32_t tokens;
  int32_t packets;  // per row
};

struct RmsNormParams {
  const comm::Packet* residual_in;  // null: there is none
  const void* gamma;
  comm::Packet* residual_out;
  comm::Packet* norm_out;
  int32_t tokens;
  int32_t packets;       // per row
  float inverse_hidden;  // 1 / H, rounded once
  float eps;
  float weight_bias;
  uint32_t gamma_fp32;
  uint32_t fp32_residual;  // comm::Mode::kFp32Residual
};

}  // namespace stoker::moe
