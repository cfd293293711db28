#include "offload/store/scheme.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace stoker::offload {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxConfigBytes = 16ull << 20;
constexpr int kMaxDepth = 64;

absl::Status Refuse(absl::string_view what, absl::string_view remedy) {
  return absl::InvalidArgumentError(absl::StrCat(what, "; ", remedy));
}

// A member, or null where there is none.
Json Member(const Json& object, const char* name) {
  return object.is_object() && object.contains(name) ? object[name] : Json();
}

// For a message: a file may hold megabytes where a word is expected.
std::string Text(const Json& json) { return json.dump().substr(0, 80); }

absl::Status SetGroup(const Json& size, Scheme* scheme) {
  if (size != 32 && size != 64 && size != 128) {
    return Refuse(absl::StrCat("group_size ", Text(size)), "use 32, 64 or 128");
  }
  scheme->group = size.get<int>();
  return absl::OkStatus();
}

absl::Status CompressedTensors(const Json& quantization, Scheme* scheme) {
  const Json format = Member(quantization, "format");
  if (format != "pack-quantized") {
    return Refuse(absl::StrCat("quantization format ", Text(format), " is not pack-quantized"),
                  "only INT4 pack-quantized experts are supported");
  }
  const Json groups = Member(quantization, "config_groups");
  if (!groups.is_object() || groups.size() != 1) {
    return Refuse("needs exactly one entry in config_groups", "mixed schemes are not supported");
  }
  const Json weights = Member(groups.begin().value(), "weights");
  const Json type = Member(weights, "type");
  if (Member(weights, "num_bits") != 4 || (!type.is_null() && type != "int")) {
    return Refuse("weights are not 4-bit integers", "use INT4");
  }
  const Json symmetric = Member(weights, "symmetric");
  if (!symmetric.is_null() && !symmetric.is_boolean()) {
    return Refuse(absl::StrCat("symmetric is ", Text(symmetric)), "it must be true or false");
  }
  scheme->zero_points = symmetric == false;
  const Json order = Member(weights, "actorder");
  if (!order.is_null() && order != false && order != "weight" && order != "static") {
    return Refuse(absl::StrCat("actorder ", Text(order), " permutes the columns of the weights"),
                  "quantise without it or with actorder 'static'");
  }
  return SetGroup(Member(weights, "group_size"), scheme);
}

absl::Status Awq(const Json& quantization, Scheme* scheme) {
  scheme->format = Format::kAwq;
  const Json bits = Member(quantization, "bits").is_null() ? Member(quantization, "w_bit")
                                                           : Member(quantization, "bits");
  if (bits != 4) return Refuse(absl::StrCat("bits ", Text(bits)), "use INT4");
  Json version = Member(quantization, "version");
  if (version != "gemm" && version != "GEMM") {
    return Refuse(absl::StrCat("AWQ version ", Text(version)), "only 'gemm' is supported");
  }
  scheme->zero_points = Member(quantization, "zero_point") != false;
  const Json size = Member(quantization, "group_size");
  return SetGroup(size.is_null() ? Member(quantization, "q_group_size") : size, scheme);
}

absl::Status Gptq(const Json& quantization, Scheme* scheme) {
  scheme->format = Format::kGptq;
  const Json bits = Member(quantization, "bits");
  if (bits != 4) return Refuse(absl::StrCat("bits ", Text(bits)), "use INT4");
  if (Member(quantization, "desc_act") == true) {
    return Refuse("desc_act permutes the columns of the weights",
                  "quantise with desc_act false or static_groups without reordering");
  }
  const Json format = Member(quantization, "checkpoint_format");
  if (!format.is_null() && format != "gptq" && format != "gptq_v2") {
    return Refuse(absl::StrCat("checkpoint_format ", Text(format)),
                  "only 'gptq' and 'gptq_v2' are supported");
  }
  scheme->gptq_v2 = format == "gptq_v2";
  // Symmetric files store zero points of 8, too: what is stored is what counts.
  scheme->zero_points = Member(quantization, "sym") != true;
  return SetGroup(Member(quantization, "group_size"), scheme);
}

// GPT-OSS clamps both halves and adds one to up; its constant alpha is not in the file.
absl::Status ReadActivation(const Json& config, Scheme* scheme) {
  if (Member(config, "model_type") != "gpt_oss") return absl::OkStatus();
  scheme->interleaved = true;
  const Json limit = Member(config, "swiglu_limit");
  if (!limit.is_null() && (!limit.is_number() || !(limit.get<float>() > 0))) {
    return Refuse(absl::StrCat("swiglu_limit ", Text(limit)), "it must be a positive number");
  }
  scheme->swiglu = {1.702f, 1.0f, limit.is_null() ? 7.0f : limit.get<float>()};
  return absl::OkStatus();
}

}  // namespace

const char* FormatName(Format format) {
  if (format == Format::kAwq) return "awq";
  return format == Format::kGptq ? "gptq" : "compressed-tensors pack-quantized";
}

absl::StatusOr<Scheme> ParseScheme(absl::string_view text) {
  bool too_deep = false;
  const auto watch = [&](int depth, Json::parse_event_t, Json&) {
    too_deep |= depth > kMaxDepth;
    return !too_deep;
  };
  const Json config = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (too_deep) return Refuse("nested more than 64 levels deep", "it is no model's config");
  if (config.is_discarded() || !config.is_object()) {
    return Refuse("is not a JSON object", "take the config.json that belongs to the model");
  }
  const Json quantization = Member(config, "quantization_config");
  const Json method = Member(quantization, "quant_method");
  Scheme scheme;
  if (method == "compressed-tensors") {
    STOKER_RETURN_IF_ERROR(CompressedTensors(quantization, &scheme));
  } else if (method == "awq") {
    STOKER_RETURN_IF_ERROR(Awq(quantization, &scheme));
  } else if (method == "gptq") {
    STOKER_RETURN_IF_ERROR(Gptq(quantization, &scheme));
  } else {
    return Refuse(absl::StrCat("quantization_config.quant_method is ", Text(method)),
                  "compressed-tensors is read in place, awq and gptq are packed first");
  }
  STOKER_RETURN_IF_ERROR(ReadActivation(config, &scheme));
  return scheme;
}

absl::StatusOr<Scheme> ReadScheme(const File& config) {
  STOKER_ASSIGN_OR_RETURN(const FileIdentity identity, config.Identity());
  if (identity.size > kMaxConfigBytes) {
    return Refuse(absl::StrCat(config.path(), " has ", identity.size, " bytes"),
                  "at most 16 MiB are read");
  }
  std::string text(identity.size, '\0');
  STOKER_RETURN_IF_ERROR(ReadFully(config, 0, absl::MakeSpan(text)));
  auto scheme = ParseScheme(text);
  if (!scheme.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(config.path(), ": ", scheme.status().message()));
  }
  return scheme;
}

}  // namespace stoker::offload
