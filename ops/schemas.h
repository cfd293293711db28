// The schemas of Stoker's ops. `engine` is OffloadEngine.handle; `communicator` is
// Communicator.handle; tensors lie on its device. Functional variants return (residual_out,
// norm_out); out variants write what they are given.
#pragma once

namespace stoker::ops {

#define STOKER_FINALIZE_PARAMETERS                                                     \
  "Tensor rows, Tensor indices, Tensor? weights, Tensor gamma, int communicator, *, "  \
  "Tensor? shared=None, Tensor? cold=None, Tensor? residual=None, float eps=1e-6, "    \
  "float weight_bias=0.0, float routed_scaling_factor=1.0, bool fp32_residual=False, " \
  "int site=0, bool programmatic_launch=False"
#define STOKER_PLAIN_PARAMETERS                                                              \
  "Tensor input, Tensor gamma, int communicator, *, Tensor? residual=None, float eps=1e-6, " \
  "float weight_bias=0.0, bool fp32_residual=False, int site=0, bool programmatic_launch=False"
#define STOKER_REDUCE_PARAMETERS                                                         \
  "Tensor rows, Tensor scales, Tensor gamma, int communicator, *, Tensor? shared=None, " \
  "Tensor? residual=None, float eps=1e-6, float weight_bias=0.0, "                       \
  "bool fp32_residual=False, int site=0, bool programmatic_launch=False"
#define STOKER_ALL_REDUCE_PARAMETERS \
  "Tensor input, int communicator, *, int site=0, bool programmatic_launch=False"
#define STOKER_LOCAL_PARAMETERS                                                               \
  "Tensor rows, Tensor indices, Tensor? weights, *, Tensor? shared=None, Tensor? cold=None, " \
  "float routed_scaling_factor=1.0, bool programmatic_launch=False"
#define STOKER_OUTPUTS ", Tensor(a!) residual_out, Tensor(b!) norm_out"

inline constexpr const char* kSchemas[] = {
    "moe_finalize_allreduce_rmsnorm(" STOKER_FINALIZE_PARAMETERS ") -> (Tensor, Tensor)",
    "moe_finalize_allreduce_rmsnorm.out(" STOKER_FINALIZE_PARAMETERS STOKER_OUTPUTS ") -> ()",
    "allreduce_rmsnorm(" STOKER_PLAIN_PARAMETERS ") -> (Tensor, Tensor)",
    "allreduce_rmsnorm.out(" STOKER_PLAIN_PARAMETERS STOKER_OUTPUTS ") -> ()",
    "moe_reduce_allreduce_rmsnorm(" STOKER_REDUCE_PARAMETERS ") -> (Tensor, Tensor)",
    "moe_reduce_allreduce_rmsnorm.out(" STOKER_REDUCE_PARAMETERS STOKER_OUTPUTS ") -> ()",
    "all_reduce(" STOKER_ALL_REDUCE_PARAMETERS ") -> Tensor",
    "all_reduce.out(" STOKER_ALL_REDUCE_PARAMETERS ", Tensor(a!) out) -> ()",
    "moe_finalize(" STOKER_LOCAL_PARAMETERS ") -> Tensor",
    "moe_finalize.out(" STOKER_LOCAL_PARAMETERS ", Tensor(a!) out) -> ()",
    "offload_experts(Tensor hidden, Tensor topk_ids, Tensor topk_weights, "
    "float routed_scaling_factor, int layer, int engine) -> Tensor",
};

#undef STOKER_FINALIZE_PARAMETERS
#undef STOKER_PLAIN_PARAMETERS
#undef STOKER_REDUCE_PARAMETERS
#undef STOKER_ALL_REDUCE_PARAMETERS
#undef STOKER_LOCAL_PARAMETERS
#undef STOKER_OUTPUTS

}  // namespace stoker::ops
