#include "moe/validate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace stoker::moe {
namespace {

// Arguments that are valid, over one arena in which nothing overlaps; a case spoils one thing.
struct Call {
  Call() : arena(1 << 20) {
    plan.world = 2;
    plan.layout = {.world = 2, .capacity = 16, .stride = 64};
    shape = {4, 512, comm::WireType::kBf16};
    const auto at = [this](int64_t offset) { return arena.data() + offset; };
    finalize.rows = at(0);
    finalize.row_count = 40;
    finalize.indices = reinterpret_cast<const int32_t*>(at(100'000));
    finalize.weights = at(110'000);
    finalize.top_k = 8;
    finalize.shared = at(120'000);
    finalize.cold = at(130'000);
    norm.residual_in = at(140'000);
    norm.gamma = at(150'000);
    norm.residual_out = at(160'000);
    norm.norm_out = at(170'000);
    input = at(180'000);
  }
  std::vector<char> arena;
  comm::GroupPlan plan;
  Shape shape;
  FinalizeArguments finalize;
  NormArguments norm;
  const void* input;
};

struct Case {
  const char* name;
  std::function<void(Call&)> spoil;
  const char* message;
};

char* Shift(const void* p, int64_t bytes) {
  return const_cast<char*>(static_cast<const char*>(p)) + bytes;
}

const Case kCases[] = {
    {"TokensOverCapacity", [](Call& c) { c.shape.tokens = 17; },
     "17 tokens; the communicator was created for 0 to 16"},
    {"NegativeTokens", [](Call& c) { c.shape.tokens = -1; }, "-1 tokens"},
    {"HiddenNotMultipleOf8", [](Call& c) { c.shape.hidden = 508; },
     "508; it must be a positive multiple of 8"},
    {"HiddenZero", [](Call& c) { c.shape.hidden = 0; }, "multiple of 8"},
    {"HiddenOverPlan", [](Call& c) { c.shape.hidden = 520; }, "at most 512"},
    {"WireType", [](Call& c) { c.shape.wire_type = static_cast<comm::WireType>(2); }, "wire type"},
    {"TopKZero", [](Call& c) { c.finalize.top_k = 0; }, "top_k is 0; it must be 1 to 32"},
    {"TopK33", [](Call& c) { c.finalize.top_k = 33; }, "top_k is 33"},
    {"RowCount", [](Call& c) { c.finalize.row_count = int64_t{1} << 31; }, "row_count"},
    {"NegativeRowCount", [](Call& c) { c.finalize.row_count = -1; }, "row_count"},
    {"NoRows", [](Call& c) { c.finalize.rows = nullptr; }, "rows is missing"},
    {"NoIndices", [](Call& c) { c.finalize.indices = nullptr; }, "indices is missing"},
    {"NoGamma", [](Call& c) { c.norm.gamma = nullptr; }, "gamma is missing"},
    {"NoResidualOut", [](Call& c) { c.norm.residual_out = nullptr; }, "residual_out is missing"},
    {"NoNormOut", [](Call& c) { c.norm.norm_out = nullptr; }, "norm_out is missing"},
    {"RowsMisaligned", [](Call& c) { c.finalize.rows = Shift(c.finalize.rows, 8); },
     "16-byte aligned"},
    {"SharedMisaligned", [](Call& c) { c.finalize.shared = Shift(c.finalize.shared, 2); },
     "shared starts at"},
    {"GammaMisaligned", [](Call& c) { c.norm.gamma = Shift(c.norm.gamma, 4); }, "gamma starts at"},
    {"OutputMisaligned", [](Call& c) { c.norm.norm_out = Shift(c.norm.norm_out, 2); },
     "norm_out starts at"},
    {"EpsNegative", [](Call& c) { c.norm.eps = -1e-6f; }, "eps is -"},
    {"EpsNan", [](Call& c) { c.norm.eps = NAN; }, "eps is nan"},
    {"WeightBias", [](Call& c) { c.norm.weight_bias = INFINITY; }, "weight_bias is inf"},
    {"Scaling", [](Call& c) { c.finalize.routed_scaling_factor = NAN; }, "routed_scaling_factor"},
    {"Mode", [](Call& c) { c.norm.mode = static_cast<comm::Mode>(7); }, "the mode is 7"},
    {"WeightType", [](Call& c) { c.finalize.weight_type = static_cast<ScalarType>(5); },
     "routing weights is 5"},
    {"ColdType", [](Call& c) { c.finalize.cold_type = static_cast<ScalarType>(5); },
     "cold addend is 5"},
    {"GammaType", [](Call& c) { c.norm.gamma_type = static_cast<ScalarType>(5); }, "gamma is 5"},
    {"OutputsCoincide", [](Call& c) { c.norm.norm_out = c.norm.residual_out; },
     "norm_out overlaps residual_out"},
    {"OutputsOverlap", [](Call& c) { c.norm.norm_out = Shift(c.norm.residual_out, 4080); },
     "overlaps residual_out"},
    {"NormOutIsResidualIn",
     [](Call& c) { c.norm.norm_out = const_cast<void*>(c.norm.residual_in); },
     "norm_out overlaps residual_in"},
    {"ResidualShifted", [](Call& c) { c.norm.residual_out = Shift(c.norm.residual_in, 16); },
     "residual_out overlaps residual_in"},
    {"OutputIsGamma", [](Call& c) { c.norm.norm_out = const_cast<void*>(c.norm.gamma); },
     "overlaps gamma"},
    {"OutputInRows", [](Call& c) { c.norm.norm_out = Shift(c.finalize.rows, 1024 * 39); },
     "norm_out overlaps rows"},
    {"OutputInIndices",
     [](Call& c) { c.norm.residual_out = const_cast<int32_t*>(c.finalize.indices); },
     "overlaps indices"},
    {"OutputInWeights",
     [](Call& c) { c.norm.residual_out = const_cast<void*>(c.finalize.weights); },
     "overlaps weights"},
    {"OutputIsShared", [](Call& c) { c.norm.norm_out = const_cast<void*>(c.finalize.shared); },
     "overlaps shared"},
    {"OutputIsCold", [](Call& c) { c.norm.norm_out = const_cast<void*>(c.finalize.cold); },
     "overlaps cold"},
};

class BadFinalize : public ::testing::TestWithParam<Case> {};

TEST_P(BadFinalize, IsRefusedByName) {
  Call call;
  ASSERT_TRUE(ValidateFinalize(call.plan, call.shape, call.finalize, call.norm).ok());
  GetParam().spoil(call);
  const absl::Status status = ValidateFinalize(call.plan, call.shape, call.finalize, call.norm);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(GetParam().message), std::string::npos) << status;
}

INSTANTIATE_TEST_SUITE_P(Reasons, BadFinalize, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Validate, AbsentArraysAndTheResidualInPlaceAreAllowed) {
  Call call;
  call.finalize.weights = call.finalize.shared = call.finalize.cold = nullptr;
  EXPECT_TRUE(ValidateFinalize(call.plan, call.shape, call.finalize, call.norm).ok());
  call.norm.residual_out = const_cast<void*>(call.norm.residual_in);
  EXPECT_TRUE(ValidateFinalize(call.plan, call.shape, call.finalize, call.norm).ok());
  call.norm.residual_in = nullptr;
  EXPECT_TRUE(ValidateFinalize(call.plan, call.shape, call.finalize, call.norm).ok());
}

TEST(Validate, NoTokensNeedNoArrays) {
  Call call;
  call.shape.tokens = 0;
  call.finalize.rows = nullptr;
  call.finalize.indices = nullptr;
  call.finalize.row_count = 0;
  call.norm.residual_out = call.norm.norm_out = nullptr;
  EXPECT_TRUE(ValidateFinalize(call.plan, call.shape, call.finalize, call.norm).ok());
}

TEST(Validate, ALocalFinalizeNeedsAnOutputOfItsOwnAndARowThatFits) {
  const auto message = [](const std::function<void(Call&)>& spoil) {
    Call call;
    spoil(call);
    return std::string(ValidateLocalFinalize(call.shape, call.finalize, call.input).message());
  };
  EXPECT_EQ(message([](Call&) {}), "");
  // No communicator, so no capacity and no largest row of one.
  EXPECT_EQ(message([](Call& c) {
              c.shape.tokens = 20;
              c.shape.hidden = 8;
            }),
            "");
  EXPECT_EQ(message([](Call& c) {
              c.shape.tokens = 0;
              c.input = nullptr;
            }),
            "");
  EXPECT_EQ(message([](Call& c) { c.input = nullptr; }), "output is missing (a null pointer)");
  EXPECT_EQ(message([](Call& c) { c.input = c.finalize.shared; }),
            "output overlaps shared; it needs memory of its own");
  EXPECT_EQ(message([](Call& c) { c.shape.hidden = 16392; }),
            "the hidden size is 16392; it must be at most 16384");
  EXPECT_EQ(message([](Call& c) { c.shape.hidden = 12; }),
            "the hidden size is 12; it must be a positive multiple of 8");
  EXPECT_EQ(message([](Call& c) { c.finalize.top_k = 33; }), "top_k is 33; it must be 1 to 32");
  EXPECT_NE(message([](Call& c) { c.input = Shift(c.input, 2); }).find("16-byte aligned"),
            std::string::npos);
}

TEST(Validate, AReductionNeedsRowsAndScalesIfItHasExperts) {
  const auto message = [](const std::function<void(Call&, ReductionArguments&)>& spoil) {
    Call call;
    ReductionArguments reduction{.rows = call.finalize.rows,
                                 .scales = reinterpret_cast<const float*>(call.finalize.weights),
                                 .experts = 8,
                                 .shared = call.finalize.shared};
    spoil(call, reduction);
    return std::string(ValidateReduction(call.plan, call.shape, reduction, call.norm).message());
  };
  using Arguments = ReductionArguments;
  EXPECT_EQ(message([](Call&, Arguments&) {}), "");
  EXPECT_EQ(message([](Call&, Arguments& r) { r = {}; }), "");
  EXPECT_EQ(message([](Call&, Arguments& r) { r.rows = nullptr; }),
            "rows is missing (a null pointer)");
  EXPECT_EQ(message([](Call&, Arguments& r) { r.scales = nullptr; }),
            "scales is missing (a null pointer)");
  EXPECT_EQ(message([](Call&, Arguments& r) { r.experts = 1025; }),
            "the number of experts is 1025; it must be 0 to 1024");
  EXPECT_EQ(message([](Call&, Arguments& r) { r.experts = -1; }),
            "the number of experts is -1; it must be 0 to 1024");
  EXPECT_NE(message([](Call&, Arguments& r) { r.shared = Shift(r.shared, 8); }).find("aligned"),
            std::string::npos);
  EXPECT_NE(message([](Call& c, Arguments& r) {
              c.norm.norm_out = Shift(r.rows, 32);
            }).find("norm_out overlaps rows"),
            std::string::npos);
  EXPECT_NE(message([](Call& c, Arguments&) { c.shape.tokens = 17; }).find("17 tokens"),
            std::string::npos);
}

TEST(Validate, APlainInputMayBeNormOutExactlyAndNothingElse) {
  Call call;
  EXPECT_TRUE(ValidatePlain(call.plan, call.shape, call.input, call.norm).ok());
  EXPECT_TRUE(ValidatePlain(call.plan, call.shape, call.norm.norm_out, call.norm).ok());
  for (const void* input : {static_cast<const void*>(call.norm.residual_out),
                            static_cast<const void*>(Shift(call.norm.norm_out, 16))}) {
    const absl::Status status = ValidatePlain(call.plan, call.shape, input, call.norm);
    EXPECT_NE(status.message().find("overlaps input"), std::string::npos) << status;
  }
  EXPECT_FALSE(ValidatePlain(call.plan, call.shape, nullptr, call.norm).ok());
}

TEST(Validate, AnAllReduceMayBeInPlaceExactlyAndNothingElse) {
  Call call;
  char* output = static_cast<char*>(call.norm.norm_out);
  EXPECT_TRUE(ValidateAllReduce(call.plan, call.shape, call.input, output).ok());
  EXPECT_TRUE(ValidateAllReduce(call.plan, call.shape, output, output).ok());
  EXPECT_FALSE(ValidateAllReduce(call.plan, call.shape, Shift(output, 16), output).ok());
  EXPECT_FALSE(ValidateAllReduce(call.plan, call.shape, nullptr, output).ok());
  EXPECT_FALSE(ValidateAllReduce(call.plan, call.shape, call.input, nullptr).ok());
  EXPECT_FALSE(ValidateAllReduce(call.plan, call.shape, Shift(call.input, 8), output).ok());
  call.shape.tokens = 17;
  EXPECT_FALSE(ValidateAllReduce(call.plan, call.shape, call.input, output).ok());
}

TEST(Validate, WithNcclThereMayBeMoreTokensThanTheCapacity) {
  Call call;
  call.plan.layout.capacity = 2;
  const auto finalize = [&call] {
    return ValidateFinalize(call.plan, call.shape, call.finalize, call.norm);
  };
  call.plan.nccl_refusal = "two ranks share a GPU";
  EXPECT_EQ(finalize().message(),
            "there are 4 tokens; the communicator was created for 0 to 2: create it with a larger "
            "capacity; NCCL would take them, but two ranks share a GPU");
  call.plan.nccl_refusal.clear();
  call.plan.nccl_tokens_max = 4;
  EXPECT_TRUE(finalize().ok()) << finalize();
  EXPECT_TRUE(ValidatePlain(call.plan, call.shape, call.input, call.norm).ok());
  EXPECT_TRUE(ValidateAllReduce(call.plan, call.shape, call.input, call.norm.norm_out).ok());
  // A reduction has no way through NCCL.
  EXPECT_FALSE(ValidateReduction(call.plan, call.shape, {}, call.norm).ok());
  call.norm.mode = comm::Mode::kFp32Residual;
  EXPECT_NE(finalize().message().find("above 2 tokens NCCL sums, which rounds"), std::string::npos)
      << finalize();
  call.plan.layout.capacity = 4;
  EXPECT_TRUE(finalize().ok()) << finalize();
}

}  // namespace
}  // namespace stoker::moe
