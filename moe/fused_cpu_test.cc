// The fused tails on CPU ranks: bits equal to the reference, and what is said of failures. Faults
// of all kinds are in testing/faults/.
#include "moe/fused_cpu.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "testing/comparers.h"
#include "testing/cpu_launch.h"
#include "testing/cpu_world.h"
#include "testing/inputs.h"
#include "testing/long_run.h"

namespace stoker::moe {
namespace {

using stoker::testing::AllReturnedOk;
using stoker::testing::DifferenceInBits;
using stoker::testing::InputOptions;
using stoker::testing::Inputs;
using stoker::testing::LaunchAndCompare;
using stoker::testing::MakeInputs;
using stoker::testing::Outputs;
using stoker::testing::RankOutput;
using stoker::testing::RunCpuProcesses;
using stoker::testing::RunCpuThreads;
using stoker::testing::UniqueGroupName;

comm::GroupOptions Group(int capacity = 16, int hidden_max = 512) {
  comm::GroupOptions options;
  options.name = UniqueGroupName();
  options.capacity = capacity;
  options.hidden_max = hidden_max;
  options.setup_timeout = absl::Seconds(20);
  options.timeout = options.startup_timeout = absl::Seconds(10);
  return options;
}

bool AllStoredNan(const Rows& rows) {
  for (uint16_t element : rows) {
    if (element != comm::kStoredNan) return false;
  }
  return true;
}

// One launch without comparison; a failed one must leave NaN in every element.
absl::Status LaunchOnce(comm::CpuCommunicator& communicator, const InputOptions& options) {
  const Inputs mine = MakeInputs(options, communicator.plan().rank);
  Outputs out(options.shape);
  NormArguments norm = mine.norm;
  norm.residual_out = out.residual.data();
  norm.norm_out = out.norm.data();
  const absl::Status status =
      MoeFinalizeAllReduceRmsNorm(communicator, options.shape, mine.finalize, norm, {});
  if (!status.ok() && !(AllStoredNan(out.residual) && AllStoredNan(out.norm))) {
    return absl::DataLossError(absl::StrCat("finite data after: ", status.ToString()));
  }
  return status;
}

class Parity : public ::testing::TestWithParam<int> {};

TEST_P(Parity, EveryVariantEqualsTheReference) {
  const int world = GetParam();
  const auto statuses = RunCpuThreads(
      world, Group(), [](comm::CpuCommunicator& communicator, comm::RankExchange&) -> absl::Status {
        uint64_t seed = 1;
        for (comm::WireType type : {comm::WireType::kBf16, comm::WireType::kFp16}) {
          for (int variant = 0; variant < 32; ++variant) {
            InputOptions options;
            const int hidden[] = {8, 64, 264, 512};
            const int tokens[] = {0, 1, 5, 16};
            options.shape = {tokens[variant / 2 % 4], hidden[variant % 4], type};
            options.top_k = 1 + variant * 7 % 32;
            options.experts = variant * 11 % 40;
            options.weights = variant % 3 != 0;
            options.weight_type = variant % 2 == 0 ? ScalarType::kWire : ScalarType::kFp32;
            options.shared = variant % 4 < 2;
            options.cold = variant % 5 < 2;
            options.cold_type = variant % 3 == 1 ? ScalarType::kFp32 : ScalarType::kWire;
            options.residual = variant % 6 != 0;
            options.gamma_type = variant % 7 < 3 ? ScalarType::kFp32 : ScalarType::kWire;
            options.weight_bias = variant % 2 == 0 ? 0.0f : 1.0f;
            options.routed_scaling_factor = variant % 4 == 0 ? 1.0f : 2.5f;
            options.mode = variant % 8 == 5 ? comm::Mode::kFp32Residual : comm::Mode::kRounded;
            options.dropped_routes = variant % 2 == 1;
            options.special_values = variant % 4 == 3;
            options.seed = seed++;
            const absl::Status status = LaunchAndCompare(communicator, options, variant);
            if (!status.ok()) {
              return absl::Status(status.code(),
                                  absl::StrCat("variant ", variant, ": ", status.message()));
            }
          }
        }
        return absl::OkStatus();
      });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

INSTANTIATE_TEST_SUITE_P(Worlds, Parity, ::testing::Range(1, 9));

TEST(FusedCpu, PlainAllReducePassesEveryBitPatternAsNan) {
  // All 65,536 patterns, in both halves of a word, against a peer that sends -0: x + -0 = x.
  const auto statuses = RunCpuThreads(
      2, Group(16, 16384),
      [](comm::CpuCommunicator& communicator, comm::RankExchange&) -> absl::Status {
        for (comm::WireType type : {comm::WireType::kBf16, comm::WireType::kFp16}) {
          const Shape shape{8, 16384, type};
          Rows input(8 * 16384);
          for (size_t i = 0; i < input.size(); ++i) {
            input[i] = static_cast<uint16_t>(i < 65536 ? i : i * 40503u + (i >> 16));
          }
          const Rows zeros(input.size(), 0x8000);
          const std::vector<uint16_t> gamma(16384, 0x3C00);
          Outputs out(shape);
          NormArguments norm;
          norm.gamma = gamma.data();
          norm.residual_out = out.residual.data();
          norm.norm_out = out.norm.data();
          const Rows& mine = communicator.plan().rank == 0 ? input : zeros;
          STOKER_RETURN_IF_ERROR(AllReduceRmsNorm(communicator, shape, mine.data(), norm, {}));
          const NormResult expected = ReferenceSumAndNorm(shape, {input, zeros}, norm);
          const std::string difference =
              DifferenceInBits(shape, expected.residual_out, out.residual) +
              DifferenceInBits(shape, expected.norm_out, out.norm);
          if (!difference.empty()) return absl::DataLossError(difference);
          // The sum alone, beside the input and in its place.
          Rows sum(input.size(), 0xABAB), in_place = mine;
          STOKER_RETURN_IF_ERROR(AllReduce(communicator, shape, mine.data(), sum.data(), {}));
          STOKER_RETURN_IF_ERROR(
              AllReduce(communicator, shape, in_place.data(), in_place.data(), {}));
          for (const Rows& actual : {sum, in_place}) {
            const std::string wrong = DifferenceInBits(shape, expected.residual_out, actual);
            if (!wrong.empty()) return absl::DataLossError(absl::StrCat("all-reduce: ", wrong));
          }
        }
        return absl::OkStatus();
      });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST(FusedCpu, ProcessesOverTheWrapOfTheEpoch) {
  comm::GroupOptions group = Group();
  group.first_epoch = 0xFFFFFFFCu;
  const auto outcomes = RunCpuProcesses(
      4, group, absl::Seconds(60),
      [](comm::CpuCommunicator& communicator, comm::RankExchange&) -> absl::Status {
        for (int launch = 0; launch < 12; ++launch) {
          InputOptions options;
          options.shape = {launch * 5 % 7, 264, comm::WireType::kBf16};
          options.seed = launch;
          STOKER_RETURN_IF_ERROR(LaunchAndCompare(communicator, options));
        }
        return absl::OkStatus();
      },
      RankOutput::kCollected);
  EXPECT_TRUE(AllReturnedOk(outcomes).ok()) << AllReturnedOk(outcomes);
}

InputOptions Small() {
  InputOptions options;
  options.shape = {4, 64, comm::WireType::kBf16};
  return options;
}

TEST(FusedCpuFaults, AMissingRankIsNamedOnAllOthersAndResetBringsTheGroupBack) {
  comm::GroupOptions group = Group();
  group.timeout = group.startup_timeout = absl::Milliseconds(150);
  const auto statuses = RunCpuThreads(
      3, group,
      [](comm::CpuCommunicator& communicator, comm::RankExchange& exchange) -> absl::Status {
        if (communicator.plan().rank != 2) {
          const absl::Time start = absl::Now();
          const absl::Status failure = LaunchOnce(communicator, Small());
          EXPECT_EQ(failure.code(), absl::StatusCode::kDeadlineExceeded) << failure;
          EXPECT_NE(failure.message().find("for rank 2"), std::string::npos) << failure;
          EXPECT_LT(absl::Now() - start, absl::Milliseconds(2000));
          // From then on launches fail at once.
          const absl::Time again = absl::Now();
          EXPECT_FALSE(LaunchOnce(communicator, Small()).ok());
          EXPECT_LT(absl::Now() - again, absl::Milliseconds(100));
        }
        STOKER_RETURN_IF_ERROR(exchange.Barrier("failed", absl::Seconds(10)));
        EXPECT_FALSE(communicator.Health().ok());
        STOKER_RETURN_IF_ERROR(communicator.Reset(exchange, absl::Seconds(10)));
        STOKER_RETURN_IF_ERROR(communicator.SetTimeout(absl::Seconds(10)));
        EXPECT_TRUE(communicator.Health().ok());
        for (int launch = 0; launch < testing::Repetitions(200, 100'000); ++launch) {
          InputOptions options = Small();
          options.seed = launch;
          STOKER_RETURN_IF_ERROR(LaunchAndCompare(communicator, options));
        }
        return absl::OkStatus();
      });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST(FusedCpuFaults, LaunchesAfterAFailureDoNotHideItsCause) {
  comm::GroupOptions group = Group();
  group.timeout = group.startup_timeout = absl::Milliseconds(100);
  const auto statuses = RunCpuThreads(
      3, group,
      [](comm::CpuCommunicator& communicator, comm::RankExchange& exchange) -> absl::Status {
        if (communicator.plan().rank != 1) {
          for (int launch = 0; launch < 40; ++launch) {
            const absl::Status failure = LaunchOnce(communicator, Small());
            EXPECT_EQ(failure.code(), absl::StatusCode::kDeadlineExceeded) << failure;
            EXPECT_NE(failure.message().find("launched finalize of 4 tokens"), std::string::npos)
                << failure;
          }
        }
        return exchange.Barrier("end", absl::Seconds(20));
      });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST(FusedCpuFaults, AnIndexOutOfRangeIsNamedAndNobodyGetsFiniteData) {
  const auto statuses = RunCpuThreads(
      2, Group(), [](comm::CpuCommunicator& communicator, comm::RankExchange&) -> absl::Status {
        Inputs mine = MakeInputs(Small(), communicator.plan().rank);
        if (communicator.plan().rank == 1) mine.indices[9] = 1000;
        Outputs out(Small().shape);
        NormArguments norm = mine.norm;
        norm.residual_out = out.residual.data();
        norm.norm_out = out.norm.data();
        const absl::Status status =
            MoeFinalizeAllReduceRmsNorm(communicator, Small().shape, mine.finalize, norm, {});
        EXPECT_EQ(status.ok() ? absl::StatusCode::kOutOfRange : status.code(),
                  absl::StatusCode::kOutOfRange)
            << status;
        // Token 1 has the bad route.
        for (int h = 0; h < 64; ++h) EXPECT_EQ(out.norm[64 + h], comm::kStoredNan);
        return status;
      });
  EXPECT_NE(statuses[1].message().find("expanded index 1000 of token 1"), std::string::npos)
      << statuses[1];
}

TEST(FusedCpuFaults, AMemberThatDoesNotComeToAResetIsNamed) {
  const auto statuses = RunCpuThreads(
      2, Group(),
      [](comm::CpuCommunicator& communicator, comm::RankExchange& exchange) -> absl::Status {
        if (communicator.plan().rank == 1) return absl::CancelledError("gone");
        return communicator.Reset(exchange, absl::Milliseconds(200));
      });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDeadlineExceeded) << statuses[0];
  EXPECT_NE(statuses[0].message().find("rank 1"), std::string::npos) << statuses[0];
}

TEST(FusedCpu, AClosedCommunicatorRefusesLaunchesAndClosesAgain) {
  const auto statuses = RunCpuThreads(
      2, Group(),
      [](comm::CpuCommunicator& communicator, comm::RankExchange& exchange) -> absl::Status {
        STOKER_RETURN_IF_ERROR(communicator.Close(exchange, absl::Seconds(5)));
        STOKER_RETURN_IF_ERROR(communicator.Close(exchange, absl::Seconds(5)));
        const Inputs mine = MakeInputs(Small(), communicator.plan().rank);
        Outputs out(Small().shape);
        NormArguments norm = mine.norm;
        norm.residual_out = out.residual.data();
        norm.norm_out = out.norm.data();
        const absl::Status status =
            MoeFinalizeAllReduceRmsNorm(communicator, Small().shape, mine.finalize, norm, {});
        EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
        return absl::OkStatus();
      });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace stoker::moe
