#include "testing/gpu/launch_cases.h"

#include "absl/strings/str_cat.h"
#include "testing/all_pairs.h"

namespace stoker::testing {
namespace {

constexpr int kWorlds[] = {2, 3, 4, 5, 6, 7, 8};
constexpr int kTokens[] = {0, 1, 2, 7, 12, 16, 18, 28, 33, 37, 64, 128};
constexpr int kHidden[] = {2048, 2880, 4096, 6144, 7168};
constexpr int kTopK[] = {1, 6, 8, 10};

enum Factor {
  kType,
  kWeights,
  kHiddenSize,
  kTokenCount,
  kWorld,
  kRoutes,
  kAddends,
  kResidual,
  kBias,
  kProgrammatic,
  kGraph,
  kGammaType,
  kMode,
  kExchange
};
const std::vector<int> kLevels = {2, 3, 5, 12, 7, 4, 4, 2, 2, 2, 2, 2, 2, 2};

InputOptions Options(const std::vector<int>& c, uint64_t seed) {
  InputOptions options;
  options.shape = {kTokens[c[kTokenCount]], kHidden[c[kHiddenSize]],
                   c[kType] == 0 ? comm::WireType::kBf16 : comm::WireType::kFp16};
  options.weights = c[kWeights] != 2;
  options.weight_type = c[kWeights] == 1 ? moe::ScalarType::kFp32 : moe::ScalarType::kWire;
  options.top_k = kTopK[c[kRoutes]];
  options.shared = c[kAddends] % 2 == 0;
  options.cold = c[kAddends] >= 2;
  options.cold_type = c[kGammaType] == 0 ? moe::ScalarType::kWire : moe::ScalarType::kFp32;
  options.residual = c[kResidual] == 0;
  options.weight_bias = c[kBias] == 0 ? 0.0f : 1.0f;
  options.gamma_type = c[kGammaType] == 0 ? moe::ScalarType::kWire : moe::ScalarType::kFp32;
  options.mode = c[kMode] == 0 ? comm::Mode::kRounded : comm::Mode::kFp32Residual;
  options.dropped_routes = true;
  options.special_values = c[kBias] == 1;
  options.experts = static_cast<int32_t>((seed - 1) / 2 % 20);
  options.seed = seed;
  return options;
}

std::string Name(const InputOptions& o, int world, const std::vector<int>& c) {
  return absl::StrCat(
      "world ", world, ", tokens ", o.shape.tokens, ", hidden ", o.shape.hidden, ", top-k ",
      o.top_k, c[kType] == 0 ? ", bf16" : ", fp16", ", weights ", c[kWeights], ", addends ",
      c[kAddends], ", residual ", c[kResidual] == 0 ? "yes" : "no", ", bias ", o.weight_bias,
      c[kProgrammatic] == 1 ? ", programmatic" : "", c[kGraph] == 1 ? ", graph" : ", eager");
}

}  // namespace

std::vector<LaunchCase> LaunchCases() {
  std::vector<LaunchCase> cases;
  for (const std::vector<int>& c : AllPairs(kLevels, kLaunchCasesSeed)) {
    const uint64_t index = cases.size();
    LaunchCase launch_case;
    launch_case.world = kWorlds[c[kWorld]];
    launch_case.inputs = Options(c, 2 * index + 1);
    launch_case.other_inputs = Options(c, 2 * index + 2);
    launch_case.launch = {.site = static_cast<uint32_t>(index),
                          .programmatic_launch = c[kProgrammatic] == 1};
    // Two ranks have nothing to gain from a second shot, and no kernel for it.
    const bool two_shot = c[kExchange] == 1 && launch_case.world > 2;
    launch_case.launch.protocol = two_shot ? comm::Protocol::kTwoShot : comm::Protocol::kOneShot;
    launch_case.graph = c[kGraph] == 1;
    launch_case.name =
        absl::StrCat("case ", index, ": ", Name(launch_case.inputs, launch_case.world, c),
                     two_shot ? ", two-shot" : ", one-shot");
    cases.push_back(std::move(launch_case));
  }
  return cases;
}

}  // namespace stoker::testing
