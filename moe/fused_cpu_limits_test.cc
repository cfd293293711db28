// The fused tail on CPU ranks at the limits of its arguments, equal to the reference bit for bit:
// H up to 16,384 and on both sides of a canonical warp, top-k up to 32; and the precision fixture.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "moe/fused_cpu.h"
#include "testing/comparers.h"
#include "testing/cpu_world.h"
#include "testing/inputs.h"
#include "testing/precision.h"

namespace stoker::moe {
namespace {

using stoker::testing::DifferenceInBits;
using stoker::testing::Expected;
using stoker::testing::InputOptions;
using stoker::testing::Inputs;
using stoker::testing::MakeAllInputs;
using stoker::testing::RunCpuThreads;

comm::GroupOptions Group() {
  comm::GroupOptions options;
  options.name = stoker::testing::UniqueGroupName();
  options.capacity = 4;
  options.hidden_max = 16384;
  options.setup_timeout = absl::Seconds(20);
  options.timeout = options.startup_timeout = absl::Seconds(20);
  return options;
}

absl::Status Launch(comm::CpuCommunicator& communicator, const Shape& shape, const Inputs& mine,
                    NormResult& out) {
  const size_t elements = static_cast<size_t>(shape.tokens) * shape.hidden;
  out.residual_out.assign(elements, 0xABAB);
  out.norm_out.assign(elements, 0xABAB);
  NormArguments norm = mine.norm;
  norm.residual_out = out.residual_out.data();
  norm.norm_out = out.norm_out.data();
  return MoeFinalizeAllReduceRmsNorm(communicator, shape, mine.finalize, norm, {});
}

struct Case {
  InputOptions options;
  std::vector<Inputs> ranks;
  NormResult expected;
};

std::vector<Case> Cases(int hidden, int world) {
  std::vector<Case> cases;
  for (comm::WireType type : {comm::WireType::kBf16, comm::WireType::kFp16}) {
    for (int top_k : {1, 31, 32}) {
      Case c;
      const int number = static_cast<int>(cases.size());
      c.options.shape = {1 + number % 2, hidden, type};
      c.options.top_k = top_k;
      c.options.weight_type = number % 2 == 0 ? ScalarType::kWire : ScalarType::kFp32;
      c.options.cold = number % 3 == 1;
      c.options.gamma_type = number % 4 < 2 ? ScalarType::kFp32 : ScalarType::kWire;
      c.options.dropped_routes = number % 2 == 1;
      c.options.seed = 1000 + number;
      c.ranks = MakeAllInputs(c.options, world);
      c.expected = Expected(c.options.shape, c.ranks);
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

class Limits : public ::testing::TestWithParam<int> {};

TEST_P(Limits, EveryRankEqualsTheReference) {
  const int world = 3;
  const std::vector<Case> cases = Cases(GetParam(), world);
  const auto statuses = RunCpuThreads(
      world, Group(),
      [&](comm::CpuCommunicator& communicator, comm::RankExchange&) -> absl::Status {
        for (const Case& c : cases) {
          NormResult out;
          const Shape& shape = c.options.shape;
          STOKER_RETURN_IF_ERROR(
              Launch(communicator, shape, c.ranks[communicator.plan().rank], out));
          const std::string difference =
              DifferenceInBits(shape, c.expected.residual_out, out.residual_out) +
              DifferenceInBits(shape, c.expected.norm_out, out.norm_out);
          if (!difference.empty()) {
            return absl::DataLossError(absl::StrCat("top-k ", c.options.top_k, ": ", difference));
          }
        }
        return absl::OkStatus();
      });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

INSTANTIATE_TEST_SUITE_P(Hidden, Limits,
                         ::testing::Values(248, 256, 264, 2880, 6144, 7168, 8184, 8192, 8200, 16376,
                                           16384));

TEST(FusedCpuPrecision, RoundsWhereTheContractRoundsAndNowhereElse) {
  const auto statuses = RunCpuThreads(
      stoker::testing::kPrecisionWorld, Group(),
      [](comm::CpuCommunicator& communicator, comm::RankExchange&) -> absl::Status {
        const Inputs mine = stoker::testing::PrecisionInputs(communicator.plan().rank);
        NormResult out;
        STOKER_RETURN_IF_ERROR(Launch(communicator, stoker::testing::PrecisionShape(), mine, out));
        EXPECT_EQ(stoker::testing::WrongTokens(out.residual_out), std::vector<int>{});
        return absl::OkStatus();
      });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace stoker::moe
