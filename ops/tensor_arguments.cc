#include "ops/tensor_arguments.h"

#include <torch/headeronly/core/ScalarType.h>

#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace stoker::ops {
namespace {

using torch::headeronly::ScalarType;

[[noreturn]] void Throw(const std::string& message) {
  throw std::runtime_error("stoker: " + message);
}

const char* Name(ScalarType type) {
  switch (type) {
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Half:
      return "float16";
    case ScalarType::Float:
      return "float32";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Double:
      return "float64";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Bool:
      return "bool";
    case ScalarType::Float8_e4m3fn:
      return "float8_e4m3fn";
    default:
      return "another dtype";
  }
}

std::string SizesOf(const Tensor& tensor) {
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < tensor.dim(); ++d) sizes.push_back(tensor.size(d));
  return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]");
}

void CheckSizes(const char* name, const Tensor& tensor, std::initializer_list<int64_t> wanted) {
  bool same = tensor.dim() == static_cast<int64_t>(wanted.size());
  int64_t d = 0;
  for (int64_t size : wanted) same = same && tensor.size(d++) == size;
  if (!same) {
    Throw(absl::StrCat(name, " has the shape ", SizesOf(tensor), "; [", absl::StrJoin(wanted, ", "),
                       "] is expected"));
  }
}

int32_t DeviceOf(const Tensor& tensor) { return tensor.is_cuda() ? tensor.get_device() : 0; }

std::string NameDevice(const Tensor& tensor) {
  return tensor.is_cuda() ? absl::StrCat("cuda:", DeviceOf(tensor)) : "the CPU";
}

void CheckLayout(const char* name, const Tensor& tensor, const Tensor& reference) {
  if (!tensor.is_contiguous()) Throw(absl::StrCat(name, " is not contiguous; call .contiguous()"));
  if (tensor.is_cuda() != reference.is_cuda() || DeviceOf(tensor) != DeviceOf(reference)) {
    Throw(absl::StrCat(name, " is on ", NameDevice(tensor), " and the rows are on ",
                       NameDevice(reference), "; all tensors of a call must be on one device"));
  }
}

comm::WireType WireTypeOf(const char* name, const Tensor& tensor) {
  if (tensor.scalar_type() == ScalarType::BFloat16) return comm::WireType::kBf16;
  if (tensor.scalar_type() == ScalarType::Half) return comm::WireType::kFp16;
  Throw(absl::StrCat(name, " is ", Name(tensor.scalar_type()),
                     "; bfloat16 and float16 are supported"));
}

// T or FP32.
moe::ScalarType ScalarTypeOf(const char* name, const Tensor& tensor, const Tensor& rows) {
  if (tensor.scalar_type() == ScalarType::Float) return moe::ScalarType::kFp32;
  if (tensor.scalar_type() == rows.scalar_type()) return moe::ScalarType::kWire;
  Throw(absl::StrCat(name, " is ", Name(tensor.scalar_type()), "; ", Name(rows.scalar_type()),
                     " (the rows' dtype) or float32 is expected"));
}

void CheckType(const char* name, const Tensor& tensor, ScalarType wanted) {
  if (tensor.scalar_type() != wanted) {
    Throw(
        absl::StrCat(name, " is ", Name(tensor.scalar_type()), "; ", Name(wanted), " is expected"));
  }
}

const void* Rows(const char* name, const std::optional<Tensor>& tensor, const Tensor& rows,
                 const moe::Shape& shape) {
  if (!tensor.has_value()) return nullptr;
  CheckLayout(name, *tensor, rows);
  CheckType(name, *tensor, rows.scalar_type());
  CheckSizes(name, *tensor, {shape.tokens, shape.hidden});
  return tensor->const_data_ptr();
}

moe::Shape MakeShape(const char* name, const Tensor& rows, int64_t tokens, int64_t hidden) {
  if (!rows.is_contiguous()) Throw(absl::StrCat(name, " is not contiguous; call .contiguous()"));
  constexpr int64_t kIntMax = std::numeric_limits<int32_t>::max();
  if (tokens > kIntMax || hidden > kIntMax) Throw(absl::StrCat(name, " is too large"));
  return {static_cast<int32_t>(tokens), static_cast<int32_t>(hidden), WireTypeOf(name, rows)};
}

void CheckMatrix(const char* name, const Tensor& rows) {
  if (rows.dim() != 2)
    Throw(absl::StrCat(name, " has the shape ", SizesOf(rows), "; [rows, hidden] is expected"));
}

moe::NormArguments MakeNorm(const NormInputs& in, const Tensor& rows, const moe::Shape& shape,
                            const Tensor& residual_out, const Tensor& norm_out) {
  moe::NormArguments norm;
  norm.residual_in = Rows("residual", in.residual, rows, shape);
  CheckLayout("gamma", in.gamma, rows);
  CheckSizes("gamma", in.gamma, {shape.hidden});
  norm.gamma_type = ScalarTypeOf("gamma", in.gamma, rows);
  norm.gamma = in.gamma.const_data_ptr();
  norm.eps = static_cast<float>(in.eps);
  norm.weight_bias = static_cast<float>(in.weight_bias);
  norm.mode = in.fp32_residual ? comm::Mode::kFp32Residual : comm::Mode::kRounded;
  norm.residual_out = const_cast<void*>(Rows("residual_out", residual_out, rows, shape));
  norm.norm_out = const_cast<void*>(Rows("norm_out", norm_out, rows, shape));
  return norm;
}

moe::FinalizeArguments MakeFinalize(const Tensor& rows, const Tensor& indices,
                                    const std::optional<Tensor>& weights,
                                    const std::optional<Tensor>& shared,
                                    const std::optional<Tensor>& cold, double routed_scaling_factor,
                                    const moe::Shape& shape) {
  CheckLayout("indices", indices, rows);
  CheckType("indices", indices, ScalarType::Int);
  moe::FinalizeArguments finalize;
  finalize.rows = rows.const_data_ptr();
  finalize.row_count = rows.size(0);
  finalize.indices = static_cast<const int32_t*>(indices.const_data_ptr());
  finalize.top_k = static_cast<int32_t>(std::min<int64_t>(indices.size(1), 1 << 20));
  if (weights.has_value()) {
    CheckLayout("weights", *weights, rows);
    CheckSizes("weights", *weights, {indices.size(0), indices.size(1)});
    finalize.weight_type = ScalarTypeOf("weights", *weights, rows);
    finalize.weights = weights->const_data_ptr();
  }
  finalize.shared = Rows("shared", shared, rows, shape);
  if (cold.has_value()) {
    CheckLayout("cold", *cold, rows);
    CheckSizes("cold", *cold, {shape.tokens, shape.hidden});
    finalize.cold_type = ScalarTypeOf("cold", *cold, rows);
    finalize.cold = cold->const_data_ptr();
  }
  finalize.routed_scaling_factor = static_cast<float>(routed_scaling_factor);
  return finalize;
}

// Of a finalize: indices say how many tokens there are.
moe::Shape MakeRoutedShape(const Tensor& rows, const Tensor& indices) {
  if (indices.dim() != 2) {
    Throw(
        absl::StrCat("indices has the shape ", SizesOf(indices), "; [tokens, top_k] is expected"));
  }
  CheckMatrix("rows", rows);
  return MakeShape("rows", rows, indices.size(0), rows.size(1));
}

}  // namespace

FinalizeCall MakeFinalizeCall(const Tensor& rows, const Tensor& indices,
                              const std::optional<Tensor>& weights,
                              const std::optional<Tensor>& shared,
                              const std::optional<Tensor>& cold, double routed_scaling_factor,
                              const NormInputs& norm, const Tensor& residual_out,
                              const Tensor& norm_out) {
  FinalizeCall call;
  call.shape = MakeRoutedShape(rows, indices);
  call.device = DeviceOf(rows);
  call.finalize =
      MakeFinalize(rows, indices, weights, shared, cold, routed_scaling_factor, call.shape);
  call.norm = MakeNorm(norm, rows, call.shape, residual_out, norm_out);
  return call;
}

LocalFinalizeCall MakeLocalFinalizeCall(const Tensor& rows, const Tensor& indices,
                                        const std::optional<Tensor>& weights,
                                        const std::optional<Tensor>& shared,
                                        const std::optional<Tensor>& cold,
                                        double routed_scaling_factor, bool programmatic_launch,
                                        const Tensor& output) {
  LocalFinalizeCall call;
  call.shape = MakeRoutedShape(rows, indices);
  call.finalize =
      MakeFinalize(rows, indices, weights, shared, cold, routed_scaling_factor, call.shape);
  call.output = const_cast<void*>(Rows("out", output, rows, call.shape));
  call.programmatic_launch = programmatic_launch;
  call.device = DeviceOf(rows);
  return call;
}

ReductionCall MakeReductionCall(const Tensor& rows, const Tensor& scales,
                                const std::optional<Tensor>& shared, const NormInputs& norm,
                                const Tensor& residual_out, const Tensor& norm_out) {
  if (rows.dim() != 3) {
    Throw(absl::StrCat("rows has the shape ", SizesOf(rows),
                       "; [experts, tokens, hidden] is expected"));
  }
  ReductionCall call;
  call.shape = MakeShape("rows", rows, rows.size(1), rows.size(2));
  call.device = DeviceOf(rows);
  CheckLayout("scales", scales, rows);
  CheckType("scales", scales, ScalarType::Float);
  CheckSizes("scales", scales, {rows.size(0), rows.size(1)});
  moe::ReductionArguments& reduction = call.reduction;
  reduction.rows = rows.const_data_ptr();
  reduction.scales = static_cast<const float*>(scales.const_data_ptr());
  reduction.experts = static_cast<int32_t>(std::min<int64_t>(rows.size(0), 1 << 20));
  reduction.shared = Rows("shared", shared, rows, call.shape);
  call.norm = MakeNorm(norm, rows, call.shape, residual_out, norm_out);
  return call;
}

PlainCall MakePlainCall(const Tensor& input, const NormInputs& norm, const Tensor& residual_out,
                        const Tensor& norm_out) {
  PlainCall call;
  CheckMatrix("input", input);
  call.shape = MakeShape("input", input, input.size(0), input.size(1));
  call.device = DeviceOf(input);
  call.input = input.const_data_ptr();
  call.norm = MakeNorm(norm, input, call.shape, residual_out, norm_out);
  return call;
}

AllReduceCall MakeAllReduceCall(const Tensor& input, const Tensor& out) {
  AllReduceCall call;
  CheckMatrix("input", input);
  call.shape = MakeShape("input", input, input.size(0), input.size(1));
  call.device = DeviceOf(input);
  call.input = input.const_data_ptr();
  call.output = const_cast<void*>(Rows("out", out, input, call.shape));
  return call;
}

void CheckOffloadArguments(const Tensor& hidden, const Tensor& topk_ids,
                           const Tensor& topk_weights) {
  if (hidden.dim() != 2) {
    Throw(absl::StrCat("hidden has the shape ", SizesOf(hidden), "; [tokens, hidden] is expected"));
  }
  CheckLayout("hidden", hidden, hidden);
  if (hidden.scalar_type() != ScalarType::Float) {
    // Throws for what is none of the three types.
    WireTypeOf("hidden", hidden);
  }
  if (topk_ids.dim() != 2) {
    Throw(absl::StrCat("topk_ids has the shape ", SizesOf(topk_ids),
                       "; [tokens, top_k] is expected"));
  }
  CheckLayout("topk_ids", topk_ids, hidden);
  CheckSizes("topk_ids", topk_ids, {hidden.size(0), topk_ids.size(1)});
  if (topk_ids.scalar_type() != ScalarType::Int && topk_ids.scalar_type() != ScalarType::Long) {
    Throw(absl::StrCat("topk_ids is ", Name(topk_ids.scalar_type()),
                       "; int32 and int64 are supported"));
  }
  CheckLayout("topk_weights", topk_weights, hidden);
  CheckSizes("topk_weights", topk_weights, {hidden.size(0), topk_ids.size(1)});
  ScalarTypeOf("topk_weights", topk_weights, hidden);
  // Before anything is copied.
  if (hidden.size(0) > 4096) {
    Throw(absl::StrCat("hidden has ", hidden.size(0), " tokens; at most 4096 are supported"));
  }
  if (topk_ids.size(1) < 1 || topk_ids.size(1) > 32) {
    Throw(absl::StrCat("top_k is ", topk_ids.size(1), "; 1 to 32 are supported"));
  }
}

moe::LaunchOptions MakeOptions(int64_t site, bool programmatic_launch) {
  if (site < 0 || site > std::numeric_limits<uint32_t>::max()) {
    Throw(absl::StrCat("site is ", site, "; it must be 0 to 2^32 - 1"));
  }
  moe::LaunchOptions options;
  options.site = static_cast<uint32_t>(site);
  options.programmatic_launch = programmatic_launch;
  return options;
}

void ThrowNaming(const std::string& rank, const std::string& message) {
  if (rank.empty()) throw std::runtime_error(message);
  Throw(absl::StrCat(rank, ": ", absl::StripPrefix(message, "stoker: ")));
}

void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) Throw(std::string(status.message()));
}

}  // namespace stoker::ops
