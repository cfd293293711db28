// The op that runs cold experts on the CPU, and its engines by handle.
#pragma once

#include "ops/tensor_arguments.h"

namespace stoker::ops {

// The FP32 sum over the experts of this rank, times `routed_scaling_factor`: [tokens, hidden].
//   hidden [tokens, hidden] bfloat16, float16 or float32; topk_ids [tokens, top_k] int32 or int64
//   (outside the experts: skipped); topk_weights [tokens, top_k] float32 or hidden's dtype;
//   layer: the number that the checkpoint gives it.
Tensor OffloadExperts(Tensor hidden, Tensor topk_ids, Tensor topk_weights,
                      double routed_scaling_factor, int64_t layer, int64_t engine);

}  // namespace stoker::ops
