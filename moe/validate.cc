#include "moe/validate.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace stoker::moe {
namespace {

constexpr int32_t kLocalTokensMax = 1 << 24;  // bounds the grid of a local launch

struct Array {
  const char* name;
  const void* data;
  int64_t bytes;
};

absl::Status Bad(const char* name, double value, const char* rule) {
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, "; it must be ", rule));
}

absl::Status CheckRow(const Shape& shape) {
  if (shape.wire_type != comm::WireType::kBf16 && shape.wire_type != comm::WireType::kFp16) {
    return Bad("the wire type", static_cast<double>(shape.wire_type), "bf16 (0) or fp16 (1)");
  }
  if (shape.hidden < comm::kPacketElements || shape.hidden % comm::kPacketElements != 0) {
    return Bad("the hidden size", shape.hidden, "a positive multiple of 8");
  }
  return absl::OkStatus();
}

// `tokens_max` is the plan's capacity, or its tokens_max() where there is a way through NCCL.
absl::Status CheckShape(const comm::GroupPlan& plan, const Shape& shape, int32_t tokens_max) {
  STOKER_RETURN_IF_ERROR(CheckRow(shape));
  if (shape.hidden > plan.hidden_max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the hidden size is ", shape.hidden, "; the communicator was created for at most ",
        plan.hidden_max(), ": create it with a larger hidden_max"));
  }
  if (shape.tokens < 0 || shape.tokens > tokens_max) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there are ", shape.tokens, " tokens; the communicator was created for 0 to ", tokens_max,
        ": create it with a larger capacity",
        plan.nccl_refusal.empty() ? "" : "; NCCL would take them, but ", plan.nccl_refusal));
  }
  return absl::OkStatus();
}

absl::Status CheckScalar(const char* name, ScalarType type) {
  if (type == ScalarType::kWire || type == ScalarType::kFp32) return absl::OkStatus();
  return Bad(name, static_cast<double>(type), "of the rows' type (0) or fp32 (1)");
}

absl::Status CheckNorm(const NormArguments& norm) {
  if (!std::isfinite(norm.eps) || norm.eps < 0.0f) return Bad("eps", norm.eps, "finite and >= 0");
  if (!std::isfinite(norm.weight_bias)) return Bad("weight_bias", norm.weight_bias, "finite");
  if (norm.mode != comm::Mode::kRounded && norm.mode != comm::Mode::kFp32Residual) {
    return Bad("the mode", static_cast<double>(norm.mode), "kRounded (0) or kFp32Residual (1)");
  }
  return CheckScalar("the type of gamma", norm.gamma_type);
}

absl::Status CheckMode(const comm::GroupPlan& plan, const Shape& shape, const NormArguments& norm) {
  if (norm.mode == comm::Mode::kRounded || !plan.GoesToNccl(shape.tokens)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the FP32 residual mode with ", shape.tokens, " tokens: above ", plan.layout.capacity,
      " tokens NCCL sums, which rounds; use the rounded mode or ",
      "create the communicator with a larger capacity"));
}

bool Overlap(const Array& a, const Array& b) {
  const auto a_begin = reinterpret_cast<uintptr_t>(a.data);
  const auto b_begin = reinterpret_cast<uintptr_t>(b.data);
  return a_begin < b_begin + static_cast<uintptr_t>(b.bytes) &&
         b_begin < a_begin + static_cast<uintptr_t>(a.bytes);
}

absl::Status CheckAligned(const Array& array) {
  const auto address = reinterpret_cast<uintptr_t>(array.data);
  if (address % comm::kPacketBytes == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(array.name, " starts at ", absl::Hex(address),
                                                 "; rows must be 16-byte aligned"));
}

absl::Status CheckPresent(const Array& array) {
  if (array.data != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(array.name, " is missing (a null pointer)"));
}

int64_t Bytes(const Shape& shape, ScalarType type, int64_t rows) {
  return rows * shape.hidden * (type == ScalarType::kFp32 ? 4 : 2);
}

// `inputs` are what the launch reads; the first may coincide exactly with norm_out if `plain`.
template <int kInputs>
absl::Status CheckArrays(const Shape& shape, const NormArguments& norm,
                         const Array (&inputs)[kInputs], bool plain) {
  const int64_t row_bytes = Bytes(shape, ScalarType::kWire, shape.tokens);
  const Array residual_in{"residual_in", norm.residual_in, row_bytes};
  const Array gamma{"gamma", norm.gamma, Bytes(shape, norm.gamma_type, 1)};
  const Array outputs[] = {{"residual_out", norm.residual_out, row_bytes},
                           {"norm_out", norm.norm_out, row_bytes}};
  STOKER_RETURN_IF_ERROR(CheckPresent(gamma));
  STOKER_RETURN_IF_ERROR(CheckAligned(gamma));
  for (const Array& output : outputs) {
    if (shape.tokens > 0) STOKER_RETURN_IF_ERROR(CheckPresent(output));
    STOKER_RETURN_IF_ERROR(CheckAligned(output));
  }
  STOKER_RETURN_IF_ERROR(CheckAligned(residual_in));
  if (shape.tokens == 0) return absl::OkStatus();
  const auto conflict = [](const Array& output, const Array& other) {
    return absl::InvalidArgumentError(
        absl::StrCat(output.name, " overlaps ", other.name,
                     "; only residual_out == residual_in (and norm_out == input of a plain "
                     "all-reduce), exactly and with the same shape, may coincide"));
  };
  if (Overlap(outputs[0], outputs[1])) return conflict(outputs[1], outputs[0]);
  for (const Array& output : outputs) {
    if (Overlap(output, gamma)) return conflict(output, gamma);
    const bool same = &output == &outputs[0] && output.data == residual_in.data;
    if (residual_in.data != nullptr && !same && Overlap(output, residual_in)) {
      return conflict(output, residual_in);
    }
    for (int i = 0; i < kInputs; ++i) {
      if (inputs[i].data == nullptr || inputs[i].bytes == 0) continue;
      const bool in_place =
          plain && i == 0 && &output == &outputs[1] && output.data == inputs[i].data;
      if (!in_place && Overlap(output, inputs[i])) return conflict(output, inputs[i]);
    }
  }
  return absl::OkStatus();
}

// What a finalize reads.
struct FinalizeInputs {
  Array arrays[5];
};

FinalizeInputs InputsOf(const Shape& shape, const FinalizeArguments& finalize) {
  const int64_t routes = static_cast<int64_t>(shape.tokens) * finalize.top_k;
  return {
      {{"rows", finalize.rows, Bytes(shape, ScalarType::kWire, finalize.row_count)},
       {"indices", finalize.indices, routes * 4},
       {"weights", finalize.weights, routes * (finalize.weight_type == ScalarType::kFp32 ? 4 : 2)},
       {"shared", finalize.shared, Bytes(shape, ScalarType::kWire, shape.tokens)},
       {"cold", finalize.cold, Bytes(shape, finalize.cold_type, shape.tokens)}}};
}

absl::Status CheckFinalize(const Shape& shape, const FinalizeArguments& finalize,
                           const FinalizeInputs& inputs) {
  STOKER_RETURN_IF_ERROR(CheckScalar("the type of the routing weights", finalize.weight_type));
  STOKER_RETURN_IF_ERROR(CheckScalar("the type of the cold addend", finalize.cold_type));
  if (finalize.top_k < 1 || finalize.top_k > comm::kTopKMax) {
    return Bad("top_k", finalize.top_k, "1 to 32");
  }
  if (!std::isfinite(finalize.routed_scaling_factor)) {
    return Bad("routed_scaling_factor", finalize.routed_scaling_factor, "finite (1.0 is off)");
  }
  if (finalize.row_count < 0 || finalize.row_count > std::numeric_limits<int32_t>::max()) {
    return Bad("row_count", static_cast<double>(finalize.row_count), "0 to 2^31 - 1");
  }
  if (shape.tokens > 0) {
    STOKER_RETURN_IF_ERROR(CheckPresent(inputs.arrays[1]));
    if (finalize.row_count > 0) STOKER_RETURN_IF_ERROR(CheckPresent(inputs.arrays[0]));
  }
  for (int i : {0, 3, 4}) STOKER_RETURN_IF_ERROR(CheckAligned(inputs.arrays[i]));
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateFinalize(const comm::GroupPlan& plan, const Shape& shape,
                              const FinalizeArguments& finalize, const NormArguments& norm) {
  STOKER_RETURN_IF_ERROR(CheckShape(plan, shape, plan.tokens_max()));
  STOKER_RETURN_IF_ERROR(CheckNorm(norm));
  STOKER_RETURN_IF_ERROR(CheckMode(plan, shape, norm));
  const FinalizeInputs inputs = InputsOf(shape, finalize);
  STOKER_RETURN_IF_ERROR(CheckFinalize(shape, finalize, inputs));
  return CheckArrays(shape, norm, inputs.arrays, /*plain=*/false);
}

absl::Status ValidateLocalFinalize(const Shape& shape, const FinalizeArguments& finalize,
                                   const void* output) {
  STOKER_RETURN_IF_ERROR(CheckRow(shape));
  if (shape.hidden > comm::kHiddenMax) return Bad("the hidden size", shape.hidden, "at most 16384");
  if (shape.tokens < 0 || shape.tokens > kLocalTokensMax) {
    return Bad("the number of tokens", shape.tokens, "0 to 2^24");
  }
  const FinalizeInputs inputs = InputsOf(shape, finalize);
  STOKER_RETURN_IF_ERROR(CheckFinalize(shape, finalize, inputs));
  const Array out{"output", output, Bytes(shape, ScalarType::kWire, shape.tokens)};
  STOKER_RETURN_IF_ERROR(CheckAligned(out));
  if (shape.tokens == 0) return absl::OkStatus();
  STOKER_RETURN_IF_ERROR(CheckPresent(out));
  for (const Array& input : inputs.arrays) {
    if (input.data != nullptr && input.bytes > 0 && Overlap(out, input)) {
      return absl::InvalidArgumentError(
          absl::StrCat("output overlaps ", input.name, "; it needs memory of its own"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateReduction(const comm::GroupPlan& plan, const Shape& shape,
                               const ReductionArguments& reduction, const NormArguments& norm) {
  STOKER_RETURN_IF_ERROR(CheckShape(plan, shape, plan.layout.capacity));
  STOKER_RETURN_IF_ERROR(CheckNorm(norm));
  if (reduction.experts < 0 || reduction.experts > kReductionExpertsMax) {
    return Bad("the number of experts", reduction.experts, "0 to 1024");
  }
  const int64_t routes = static_cast<int64_t>(reduction.experts) * shape.tokens;
  const Array inputs[] = {
      {"rows", reduction.rows, Bytes(shape, ScalarType::kWire, routes)},
      {"scales", reduction.scales, routes * 4},
      {"shared", reduction.shared, Bytes(shape, ScalarType::kWire, shape.tokens)}};
  if (routes > 0) {
    for (int i : {0, 1}) STOKER_RETURN_IF_ERROR(CheckPresent(inputs[i]));
  }
  for (int i : {0, 2}) STOKER_RETURN_IF_ERROR(CheckAligned(inputs[i]));
  return CheckArrays(shape, norm, inputs, /*plain=*/false);
}

absl::Status ValidatePlain(const comm::GroupPlan& plan, const Shape& shape, const void* input,
                           const NormArguments& norm) {
  STOKER_RETURN_IF_ERROR(CheckShape(plan, shape, plan.tokens_max()));
  STOKER_RETURN_IF_ERROR(CheckNorm(norm));
  STOKER_RETURN_IF_ERROR(CheckMode(plan, shape, norm));
  const Array inputs[] = {{"input", input, Bytes(shape, ScalarType::kWire, shape.tokens)}};
  if (shape.tokens > 0) STOKER_RETURN_IF_ERROR(CheckPresent(inputs[0]));
  STOKER_RETURN_IF_ERROR(CheckAligned(inputs[0]));
  return CheckArrays(shape, norm, inputs, /*plain=*/true);
}

absl::Status ValidateAllReduce(const comm::GroupPlan& plan, const Shape& shape, const void* input,
                               const void* output) {
  STOKER_RETURN_IF_ERROR(CheckShape(plan, shape, plan.tokens_max()));
  const int64_t bytes = Bytes(shape, ScalarType::kWire, shape.tokens);
  const Array in{"input", input, bytes}, out{"output", output, bytes};
  for (const Array& array : {in, out}) {
    if (shape.tokens > 0) STOKER_RETURN_IF_ERROR(CheckPresent(array));
    STOKER_RETURN_IF_ERROR(CheckAligned(array));
  }
  if (shape.tokens == 0 || input == output || !Overlap(in, out)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "output overlaps input; it may be exactly the input, or needs memory of its own");
}

}  // namespace stoker::moe
