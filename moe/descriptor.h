// What a launch tells its peers: the descriptor that goes into its signature, the same on CPU and
// GPU.
#pragma once

#include "comm/group.h"
#include "comm/protocol.h"
#include "moe/arguments.h"
#include "moe/launch_options.h"

namespace stoker::moe {

inline comm::LaunchDescriptor DescribePlain(const Shape& shape, const NormArguments& norm,
                                            const LaunchOptions& options,
                                            comm::Generation generation) {
  comm::LaunchDescriptor descriptor{};
  descriptor.op = comm::Op::kPlain;
  descriptor.wire_type = shape.wire_type;
  descriptor.protocol = comm::Protocol::kOneShot;
  descriptor.mode = norm.mode;
  descriptor.hidden = shape.hidden;
  descriptor.eps = norm.eps;
  descriptor.weight_bias = norm.weight_bias;
  descriptor.routed_scaling_factor = 1.0f;
  descriptor.site = options.site;
  descriptor.generation = generation.value();
  return descriptor;
}

inline comm::LaunchDescriptor DescribeFinalize(const Shape& shape,
                                               const FinalizeArguments& finalize,
                                               const NormArguments& norm,
                                               const LaunchOptions& options,
                                               comm::Generation generation) {
  comm::LaunchDescriptor descriptor = DescribePlain(shape, norm, options, generation);
  descriptor.op = comm::Op::kFinalize;
  descriptor.top_k = finalize.top_k;
  descriptor.routed_scaling_factor = finalize.routed_scaling_factor;
  return descriptor;
}

// Ranks may differ in their experts, so the descriptor does not name them.
inline comm::LaunchDescriptor DescribeReduction(const Shape& shape, const NormArguments& norm,
                                                const LaunchOptions& options,
                                                comm::Generation generation) {
  comm::LaunchDescriptor descriptor = DescribePlain(shape, norm, options, generation);
  descriptor.op = comm::Op::kReduction;
  return descriptor;
}

inline comm::LaunchDescriptor DescribeAllReduce(const Shape& shape, const LaunchOptions& options,
                                                comm::Generation generation) {
  comm::LaunchDescriptor descriptor =
      DescribePlain(shape, NormArguments{.eps = 0.0f}, options, generation);
  descriptor.op = comm::Op::kAllReduce;
  return descriptor;
}

}  // namespace stoker::moe
