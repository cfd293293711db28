// The bodies of the fused ops for one device kind, to be boxed for torch by its library's source
// file.
//
//   struct Device { static absl::Status Finalize(int64_t communicator, const FinalizeCall&,
//                                                const moe::LaunchOptions&);
//                   static absl::Status Reduction(int64_t communicator, const ReductionCall&,
//                                                 const moe::LaunchOptions&);
//                   static absl::Status Plain(int64_t communicator, const PlainCall&,
//                                             const moe::LaunchOptions&);
//                   static absl::Status AllReduce(int64_t communicator, const AllReduceCall&,
//                                                 const moe::LaunchOptions&);
//                   static absl::Status LocalFinalize(const LocalFinalizeCall&);
//                   // "rank 1 of 4", or nothing for a rank alone.
//                   static std::string NameRank(int64_t communicator); };
#pragma once

#include <torch/csrc/stable/ops.h>

#include <array>
#include <exception>
#include <optional>
#include <string>
#include <tuple>

#include "ops/tensor_arguments.h"

namespace stoker::ops {

// Runs `body`, with the rank in front of what it throws.
template <class Device, class Body>
void OnRank(int64_t communicator, const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    ThrowNaming(Device::NameRank(communicator), error.what());
  }
}

template <class Device>
void FinalizeOut(Tensor rows, Tensor indices, std::optional<Tensor> weights, Tensor gamma,
                 int64_t communicator, std::optional<Tensor> shared, std::optional<Tensor> cold,
                 std::optional<Tensor> residual, double eps, double weight_bias,
                 double routed_scaling_factor, bool fp32_residual, int64_t site,
                 bool programmatic_launch, Tensor residual_out, Tensor norm_out) {
  OnRank<Device>(communicator, [&] {
    const FinalizeCall call = MakeFinalizeCall(
        rows, indices, weights, shared, cold, routed_scaling_factor,
        {gamma, residual, eps, weight_bias, fp32_residual}, residual_out, norm_out);
    ThrowIfError(Device::Finalize(communicator, call, MakeOptions(site, programmatic_launch)));
  });
}

template <class Device>
void PlainOut(Tensor input, Tensor gamma, int64_t communicator, std::optional<Tensor> residual,
              double eps, double weight_bias, bool fp32_residual, int64_t site,
              bool programmatic_launch, Tensor residual_out, Tensor norm_out) {
  OnRank<Device>(communicator, [&] {
    const PlainCall call = MakePlainCall(input, {gamma, residual, eps, weight_bias, fp32_residual},
                                         residual_out, norm_out);
    ThrowIfError(Device::Plain(communicator, call, MakeOptions(site, programmatic_launch)));
  });
}

template <class Device>
void ReductionOut(Tensor rows, Tensor scales, Tensor gamma, int64_t communicator,
                  std::optional<Tensor> shared, std::optional<Tensor> residual, double eps,
                  double weight_bias, bool fp32_residual, int64_t site, bool programmatic_launch,
                  Tensor residual_out, Tensor norm_out) {
  OnRank<Device>(communicator, [&] {
    const ReductionCall call =
        MakeReductionCall(rows, scales, shared, {gamma, residual, eps, weight_bias, fp32_residual},
                          residual_out, norm_out);
    ThrowIfError(Device::Reduction(communicator, call, MakeOptions(site, programmatic_launch)));
  });
}

// [tokens, H], H that of `like`, whose last dimension it is.
inline Tensor NewRows(const Tensor& like, int64_t tokens) {
  const std::array<int64_t, 2> sizes = {tokens, like.dim() >= 2 ? like.size(like.dim() - 1) : 0};
  return torch::stable::new_empty(like, {sizes.data(), sizes.size()});
}

template <class Device>
std::tuple<Tensor, Tensor> FinalizeNew(Tensor rows, Tensor indices, std::optional<Tensor> weights,
                                       Tensor gamma, int64_t communicator,
                                       std::optional<Tensor> shared, std::optional<Tensor> cold,
                                       std::optional<Tensor> residual, double eps,
                                       double weight_bias, double routed_scaling_factor,
                                       bool fp32_residual, int64_t site, bool programmatic_launch) {
  const int64_t tokens = indices.dim() == 2 ? indices.size(0) : 0;
  const Tensor residual_out = NewRows(rows, tokens);
  const Tensor norm_out = NewRows(rows, tokens);
  FinalizeOut<Device>(rows, indices, weights, gamma, communicator, shared, cold, residual, eps,
                      weight_bias, routed_scaling_factor, fp32_residual, site, programmatic_launch,
                      residual_out, norm_out);
  return {residual_out, norm_out};
}

template <class Device>
std::tuple<Tensor, Tensor> ReductionNew(Tensor rows, Tensor scales, Tensor gamma,
                                        int64_t communicator, std::optional<Tensor> shared,
                                        std::optional<Tensor> residual, double eps,
                                        double weight_bias, bool fp32_residual, int64_t site,
                                        bool programmatic_launch) {
  const int64_t tokens = rows.dim() == 3 ? rows.size(1) : 0;
  const Tensor residual_out = NewRows(rows, tokens);
  const Tensor norm_out = NewRows(rows, tokens);
  ReductionOut<Device>(rows, scales, gamma, communicator, shared, residual, eps, weight_bias,
                       fp32_residual, site, programmatic_launch, residual_out, norm_out);
  return {residual_out, norm_out};
}

template <class Device>
std::tuple<Tensor, Tensor> PlainNew(Tensor input, Tensor gamma, int64_t communicator,
                                    std::optional<Tensor> residual, double eps, double weight_bias,
                                    bool fp32_residual, int64_t site, bool programmatic_launch) {
  const Tensor residual_out = NewRows(input, input.dim() == 2 ? input.size(0) : 0);
  const Tensor norm_out = NewRows(input, input.dim() == 2 ? input.size(0) : 0);
  PlainOut<Device>(input, gamma, communicator, residual, eps, weight_bias, fp32_residual, site,
                   programmatic_launch, residual_out, norm_out);
  return {residual_out, norm_out};
}

template <class Device>
void LocalFinalizeOut(Tensor rows, Tensor indices, std::optional<Tensor> weights,
                      std::optional<Tensor> shared, std::optional<Tensor> cold,
                      double routed_scaling_factor, bool programmatic_launch, Tensor out) {
  ThrowIfError(Device::LocalFinalize(MakeLocalFinalizeCall(
      rows, indices, weights, shared, cold, routed_scaling_factor, programmatic_launch, out)));
}

template <class Device>
Tensor LocalFinalizeNew(Tensor rows, Tensor indices, std::optional<Tensor> weights,
                        std::optional<Tensor> shared, std::optional<Tensor> cold,
                        double routed_scaling_factor, bool programmatic_launch) {
  const Tensor out = NewRows(rows, indices.dim() == 2 ? indices.size(0) : 0);
  LocalFinalizeOut<Device>(rows, indices, weights, shared, cold, routed_scaling_factor,
                           programmatic_launch, out);
  return out;
}

template <class Device>
void AllReduceOut(Tensor input, int64_t communicator, int64_t site, bool programmatic_launch,
                  Tensor out) {
  OnRank<Device>(communicator, [&] {
    ThrowIfError(Device::AllReduce(communicator, MakeAllReduceCall(input, out),
                                   MakeOptions(site, programmatic_launch)));
  });
}

template <class Device>
Tensor AllReduceNew(Tensor input, int64_t communicator, int64_t site, bool programmatic_launch) {
  const Tensor out = NewRows(input, input.dim() == 2 ? input.size(0) : 0);
  AllReduceOut<Device>(input, communicator, site, programmatic_launch, out);
  return out;
}

}  // namespace stoker::ops

// Registers the ten ops for torch dispatch key `key` with the bodies for `Device`.
#define STOKER_REGISTER_FUSED_OPS(key, Device)                                                    \
  STABLE_TORCH_LIBRARY_IMPL(stoker, key, m) {                                                     \
    m.impl("moe_finalize_allreduce_rmsnorm", TORCH_BOX(&::stoker::ops::FinalizeNew<Device>));     \
    m.impl("moe_finalize_allreduce_rmsnorm.out", TORCH_BOX(&::stoker::ops::FinalizeOut<Device>)); \
    m.impl("allreduce_rmsnorm", TORCH_BOX(&::stoker::ops::PlainNew<Device>));                     \
    m.impl("allreduce_rmsnorm.out", TORCH_BOX(&::stoker::ops::PlainOut<Device>));                 \
    m.impl("moe_reduce_allreduce_rmsnorm", TORCH_BOX(&::stoker::ops::ReductionNew<Device>));      \
    m.impl("moe_reduce_allreduce_rmsnorm.out", TORCH_BOX(&::stoker::ops::ReductionOut<Device>));  \
    m.impl("all_reduce", TORCH_BOX(&::stoker::ops::AllReduceNew<Device>));                        \
    m.impl("all_reduce.out", TORCH_BOX(&::stoker::ops::AllReduceOut<Device>));                    \
    m.impl("moe_finalize", TORCH_BOX(&::stoker::ops::LocalFinalizeNew<Device>));                  \
    m.impl("moe_finalize.out", TORCH_BOX(&::stoker::ops::LocalFinalizeOut<Device>));              \
  }
