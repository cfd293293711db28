#include "moe/local_finalize_cpu.h"

#include <gtest/gtest.h>

#include "moe/reference.h"
#include "testing/comparers.h"
#include "testing/inputs.h"

namespace stoker::moe {
namespace {

using stoker::testing::DifferenceInBits;
using stoker::testing::InputOptions;
using stoker::testing::Inputs;
using stoker::testing::MakeInputs;

TEST(LocalFinalizeCpu, EqualsTheReferenceBitForBit) {
  const int hidden[] = {8, 264, 1344, 2688};
  const int tokens[] = {0, 1, 5};
  for (int variant = 0; variant < 24; ++variant) {
    InputOptions options;
    options.shape = {tokens[variant % 3], hidden[variant % 4],
                     variant % 2 == 0 ? comm::WireType::kBf16 : comm::WireType::kFp16};
    options.top_k = 1 + variant * 7 % 32;
    options.weights = variant % 3 != 0;
    options.weight_type = variant % 4 < 2 ? ScalarType::kWire : ScalarType::kFp32;
    options.shared = variant % 5 < 3;
    options.cold = variant % 7 < 3;
    options.cold_type = variant % 2 == 0 ? ScalarType::kFp32 : ScalarType::kWire;
    options.dropped_routes = variant % 2 == 1;
    options.special_values = variant % 4 == 3;
    options.seed = variant + 1;
    const Inputs in = MakeInputs(options, 0);
    Rows output(static_cast<size_t>(options.shape.tokens) * options.shape.hidden, 0xABAB);
    const absl::Status status = MoeFinalizeOnCpu(options.shape, in.finalize, output.data());
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(DifferenceInBits(options.shape, ReferencePartial(options.shape, in.finalize), output),
              "")
        << "variant " << variant;
  }
}

TEST(LocalFinalizeCpu, AnIndexOutOfRangeIsNamedAndItsTokenIsNan) {
  InputOptions options;
  options.shape = {3, 16, comm::WireType::kBf16};
  options.top_k = 2;
  Inputs in = MakeInputs(options, 0);
  const Rows right = ReferencePartial(options.shape, in.finalize);
  in.indices[3] = 20;
  Rows output(3 * 16, 0xABAB);
  const absl::Status status = MoeFinalizeOnCpu(options.shape, in.finalize, output.data());
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(status.message(), "expanded index 20 of token 1 is not below the 20 permuted rows");
  for (int i = 0; i < 3 * 16; ++i) {
    EXPECT_EQ(output[i], i / 16 == 1 ? comm::kStoredNan : right[i]) << "element " << i;
  }
}

}  // namespace
}  // namespace stoker::moe
