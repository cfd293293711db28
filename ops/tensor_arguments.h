// From the tensors of an op call to moe/arguments.h, with the checks that need tensors: device,
// dtype, rank, shape, contiguity. A bad one throws std::runtime_error (Python: RuntimeError) that
// names the tensor, what it has and what is wanted.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "moe/arguments.h"
#include "moe/launch_options.h"

namespace stoker::ops {

using torch::stable::Tensor;

// What both ops take beside their first inputs.
struct NormInputs {
  const Tensor& gamma;
  const std::optional<Tensor>& residual;
  double eps;
  double weight_bias;
  bool fp32_residual;
};

// `device`: the CUDA ordinal of all tensors of a call; meaningless on the CPU.
struct FinalizeCall {
  moe::Shape shape;
  int32_t device = 0;
  moe::FinalizeArguments finalize;
  moe::NormArguments norm;
};

struct ReductionCall {
  moe::Shape shape;
  int32_t device = 0;
  moe::ReductionArguments reduction;
  moe::NormArguments norm;
};

struct PlainCall {
  moe::Shape shape;
  int32_t device = 0;
  const void* input = nullptr;
  moe::NormArguments norm;
};

struct AllReduceCall {
  moe::Shape shape;
  int32_t device = 0;
  const void* input = nullptr;
  void* output = nullptr;
};

// Finalize alone: no group and no norm.
struct LocalFinalizeCall {
  moe::Shape shape;
  moe::FinalizeArguments finalize;
  void* output = nullptr;
  bool programmatic_launch = false;
  int32_t device = 0;
};

FinalizeCall MakeFinalizeCall(const Tensor& rows, const Tensor& indices,
                              const std::optional<Tensor>& weights,
                              const std::optional<Tensor>& shared,
                              const std::optional<Tensor>& cold, double routed_scaling_factor,
                              const NormInputs& norm, const Tensor& residual_out,
                              const Tensor& norm_out);
LocalFinalizeCall MakeLocalFinalizeCall(const Tensor& rows, const Tensor& indices,
                                        const std::optional<Tensor>& weights,
                                        const std::optional<Tensor>& shared,
                                        const std::optional<Tensor>& cold,
                                        double routed_scaling_factor, bool programmatic_launch,
                                        const Tensor& output);
ReductionCall MakeReductionCall(const Tensor& rows, const Tensor& scales,
                                const std::optional<Tensor>& shared, const NormInputs& norm,
                                const Tensor& residual_out, const Tensor& norm_out);
PlainCall MakePlainCall(const Tensor& input, const NormInputs& norm, const Tensor& residual_out,
                        const Tensor& norm_out);
// `out` may be `input` itself.
AllReduceCall MakeAllReduceCall(const Tensor& input, const Tensor& out);
moe::LaunchOptions MakeOptions(int64_t site, bool programmatic_launch);

// Checks the shapes, types and layout of offload_experts' tensors.
void CheckOffloadArguments(const Tensor& hidden, const Tensor& topk_ids,
                           const Tensor& topk_weights);

// Throws `message`, which Throw... made, anew with `rank` in front; as it is for an empty rank.
[[noreturn]] void ThrowNaming(const std::string& rank, const std::string& message);
// Throws the status's message unless it is OK.
void ThrowIfError(const absl::Status& status);

}  // namespace stoker::ops
