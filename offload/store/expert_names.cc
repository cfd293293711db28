#include "offload/store/expert_names.h"

#include <array>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace stoker::offload {
namespace {

constexpr int kMaxIndex = 1 << 16;

struct Naming {
  const char* architecture;
  const char* experts;  // what stands between the layer and the expert
  std::array<const char*, 3> projections;
};

constexpr Naming kNamings[] = {
    {"Qwen3-MoE, DeepSeek-V2/V3, GLM-4.x",
     ".mlp.experts.",
     {"gate_proj.", "up_proj.", "down_proj."}},
    {"Mixtral", ".block_sparse_moe.experts.", {"w1.", "w3.", "w2."}},
};

// Takes a number without sign or leading zero from the front.
bool ConsumeIndex(absl::string_view* text, int* value) {
  const size_t digits = std::min(text->find_first_not_of("0123456789"), text->size());
  if (digits == 0 || digits > 5 || ((*text)[0] == '0' && digits > 1)) return false;
  if (!absl::SimpleAtoi(text->substr(0, digits), value) || *value >= kMaxIndex) return false;
  text->remove_prefix(digits);
  return true;
}

}  // namespace

std::optional<ExpertTensorName> ParseExpertTensorName(absl::string_view name) {
  for (const Naming& naming : kNamings) {
    absl::string_view rest = name;
    ExpertTensorName parsed{naming.architecture, 0, 0, 0, ""};
    if (!absl::ConsumePrefix(&rest, "model.layers.") || !ConsumeIndex(&rest, &parsed.layer) ||
        !absl::ConsumePrefix(&rest, naming.experts) || !ConsumeIndex(&rest, &parsed.expert) ||
        !absl::ConsumePrefix(&rest, ".")) {
      continue;
    }
    for (; parsed.projection < 3; ++parsed.projection) {
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
                    naming.experts, "E.", naming.projections[0], "weight_packed");
  }
  return text;
}

}  // namespace stoker::offload
