#include "offload/store/expert_names.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace stoker::offload {
namespace {

constexpr int kMaxIndex = 1 << 16;

// What stands before the number of the layer: language models, and those inside multimodal ones.
constexpr const char* kPrefixes[] = {"model.layers.", "model.language_model.layers.",
                                     "language_model.model.layers."};

struct Naming {
  const char* architecture;
  const char* experts;  // what stands between the layer and the expert
  bool stacked;         // no number of an expert: the first dimension counts them
  std::array<const char*, kProjections> projections;
};

constexpr Naming kNamings[] = {
    {"Qwen3-MoE, DeepSeek-V2/V3, GLM-4.x",
     ".mlp.experts.",
     false,
     {"gate_proj.", "up_proj.", "down_proj.", "gate_up_proj."}},
    {"Mixtral", ".block_sparse_moe.experts.", false, {"w1.", "w3.", "w2.", "w13."}},
    {"stacked Qwen3-MoE, DeepSeek-V2/V3, GLM-4.x, GPT-OSS",
     ".mlp.experts.",
     true,
     {"gate_proj.", "up_proj.", "down_proj.", "gate_up_proj."}},
    {"stacked Mixtral", ".block_sparse_moe.experts.", true, {"w1.", "w3.", "w2.", "w13."}},
};

// Takes a number without sign or leading zero from the front.
bool ConsumeIndex(absl::string_view* text, int* value) {
  const size_t digits = std::min(text->find_first_not_of("0123456789"), text->size());
  if (digits == 0 || digits > 5 || ((*text)[0] == '0' && digits > 1)) return false;
  if (!absl::SimpleAtoi(text->substr(0, digits), value) || *value >= kMaxIndex) return false;
  text->remove_prefix(digits);
  return true;
}

bool ConsumeExpert(const Naming& naming, absl::string_view* text, int* expert) {
  if (!absl::ConsumePrefix(text, naming.experts)) return false;
  *expert = ExpertTensorName::kStacked;
  return naming.stacked || (ConsumeIndex(text, expert) && absl::ConsumePrefix(text, "."));
}

}  // namespace

std::optional<ExpertTensorName> ParseExpertTensorName(absl::string_view name) {
  int layer = 0;
  const auto consume_layer = [&](const char* prefix) {
    absl::string_view rest = name;
    if (!absl::ConsumePrefix(&rest, prefix) || !ConsumeIndex(&rest, &layer)) return false;
    name = rest;
    return true;
  };
  if (std::none_of(std::begin(kPrefixes), std::end(kPrefixes), consume_layer)) return std::nullopt;
  for (const Naming& naming : kNamings) {
    absl::string_view rest = name;
    ExpertTensorName parsed{naming.architecture, layer, 0, 0, ""};
    if (!ConsumeExpert(naming, &rest, &parsed.expert)) continue;
    for (; parsed.projection < kProjections; ++parsed.projection) {
      if (absl::ConsumePrefix(&rest, naming.projections[parsed.projection])) {
        parsed.suffix = std::string(rest);
        return parsed;
      }
    }
  }
  return std::nullopt;
}

std::string SupportedExpertNames() {
  std::string text;
  for (const Naming& naming : kNamings) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", naming.architecture, ": model.layers.L",
                    naming.experts, naming.stacked ? "" : "E.", naming.projections[kProjectGate],
                    "weight_packed");
  }
  return text;
}

}  // namespace stoker::offload
