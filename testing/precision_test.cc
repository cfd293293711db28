#include "testing/precision.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <vector>

#include "comm/wire_type.h"

namespace stoker::testing {
namespace {

float ToBf16(float x) { return comm::Bf16::ToFloat(comm::Bf16::FromFloat(x)); }
float Keep(float x) { return x; }

using Rounding = std::function<float(float)>;

// The contract as loops of its own, with a rounding that may be put in after every route, after the
// shared and the cold row, or after every rank.
std::vector<uint16_t> Compute(const Rounding& route, const Rounding& add, const Rounding& rank) {
  const moe::Shape shape = PrecisionShape();
  std::vector<uint16_t> out(shape.tokens * shape.hidden);
  std::vector<Inputs> inputs;
  for (int r = 0; r < kPrecisionWorld; ++r) inputs.push_back(PrecisionInputs(r));
  for (int token = 0; token < shape.tokens; ++token) {
    for (int column = 0; column < shape.hidden; ++column) {
      float sum = 0.0f;
      for (int r = 0; r < kPrecisionWorld; ++r) {
        float partial = 0.0f;
        for (int k = 0; k < kPrecisionTopK; ++k) {
          const int row = inputs[r].indices[token * kPrecisionTopK + k];
          partial =
              route(partial + comm::Bf16::ToFloat(inputs[r].rows[row * shape.hidden + column]));
        }
        const int at = token * shape.hidden + column;
        uint16_t cold = 0;
        std::memcpy(&cold, &inputs[r].cold[2 * at], 2);
        partial = add(partial + comm::Bf16::ToFloat(inputs[r].shared[at]));
        partial = add(partial + comm::Bf16::ToFloat(cold));
        sum = rank(sum + ToBf16(partial));
      }
      out[token * shape.hidden + column] = comm::Bf16::FromFloat(sum);
    }
  }
  return out;
}

TEST(Precision, TheContractPasses) {
  EXPECT_EQ(WrongTokens(Compute(Keep, Keep, Keep)), std::vector<int>{});
}

TEST(Precision, TheReferencePasses) {
  std::vector<Inputs> inputs;
  for (int r = 0; r < kPrecisionWorld; ++r) inputs.push_back(PrecisionInputs(r));
  EXPECT_EQ(WrongTokens(Expected(PrecisionShape(), inputs).residual_out), std::vector<int>{});
}

TEST(Precision, RoundingAfterEveryRouteFails) {
  EXPECT_EQ(WrongTokens(Compute(ToBf16, Keep, Keep)), std::vector<int>{0});
}

TEST(Precision, RoundingAfterEveryAddFails) {
  EXPECT_EQ(WrongTokens(Compute(Keep, ToBf16, Keep)), std::vector<int>{1});
}

TEST(Precision, RoundingAfterEveryRankFails) {
  EXPECT_EQ(WrongTokens(Compute(Keep, Keep, ToBf16)), std::vector<int>{2});
}

}  // namespace
}  // namespace stoker::testing
