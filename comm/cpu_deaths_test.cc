// A member is killed at every step of a group's life. The others learn its rank in bounded time,
// get right rows or NaN and nothing else, close, and leave nothing in /dev/shm.
#include <glob.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <csignal>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "comm/cpu_launches.h"
#include "comm/socket_exchange.h"
#include "testing/rank_processes.h"

namespace stoker::comm {
namespace {

using stoker::testing::RankOutcome;
using stoker::testing::RunRankProcesses;

constexpr int kWorld = 3;
constexpr int kTokens = 4;

struct Death {
  int rank = -1;
  int exchange_call = -1;  // the n-th AllGather of its life ...
  bool after = false;      // ... once it has returned
  int producing = -1;      // or while it makes or takes this token of the second launch
  int consuming = -1;
};

std::string Describe(const Death& d) {
  if (d.exchange_call >= 0) {
    return absl::StrCat("rank ", d.rank, d.after ? " after" : " before", " exchange call ",
                        d.exchange_call);
  }
  return absl::StrCat("rank ", d.rank, d.producing >= 0 ? " producing" : " consuming", " token ",
                      std::max(d.producing, d.consuming));
}

class MortalExchange : public RankExchange {
 public:
  MortalExchange(std::unique_ptr<RankExchange> real, const Death& death)
      : real_(std::move(real)), death_(death) {}
  int rank() const override { return real_->rank(); }
  int world() const override { return real_->world(); }
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view what,
                                                     absl::string_view message,
                                                     absl::Duration timeout) override {
    const bool last = rank() == death_.rank && calls_++ == death_.exchange_call;
    if (last && !death_.after) std::raise(SIGKILL);
    auto messages = real_->AllGather(what, message, timeout);
    if (last) std::raise(SIGKILL);
    return messages;
  }

 private:
  std::unique_ptr<RankExchange> real_;
  Death death_;
  int calls_ = 0;
};

GroupOptions Options() {
  GroupOptions options;
  options.name = absl::StrCat("deaths-", absl::Hex(std::random_device()()));
  options.capacity = kTokens;
  options.hidden_max = 64;
  options.setup_timeout = absl::Seconds(5);
  options.timeout = options.startup_timeout = absl::Milliseconds(400);
  return options;
}

// Everything that a group does. Returns its first error and that of closing.
absl::Status Live(const GroupOptions& options, const Death& death, int rank) {
  STOKER_ASSIGN_OR_RETURN(auto socket,
                          MakeSocketExchange(options.name, rank, kWorld, options.setup_timeout));
  MortalExchange exchange(std::move(socket), death);
  STOKER_ASSIGN_OR_RETURN(auto communicator, CpuCommunicator::Create(options, exchange));
  const auto die_at = [&](int token) {
    return [&death, rank, token](int now) {
      if (rank == death.rank && now == token) std::raise(SIGKILL);
    };
  };
  const auto work = [&]() -> absl::Status {
    STOKER_RETURN_IF_ERROR(LaunchAndCheck(*communicator, kTokens));
    STOKER_RETURN_IF_ERROR(LaunchAndCheck(
        *communicator, kTokens,
        {.producing = die_at(death.producing), .consuming = die_at(death.consuming)}));
    STOKER_RETURN_IF_ERROR(LaunchAndCheck(*communicator, kTokens));
    // A reset stops launches: the others' last one has to be over.
    STOKER_RETURN_IF_ERROR(exchange.Barrier("launched", absl::Seconds(5)));
    STOKER_RETURN_IF_ERROR(communicator->Reset(exchange, absl::Seconds(5)));
    return LaunchAndCheck(*communicator, kTokens);
  };
  absl::Status status = work();
  const absl::Status closed = communicator->Close(exchange, absl::Seconds(2));
  if (!status.ok() && closed.ok()) return absl::InternalError("closing was not told of the death");
  // Who hears of it through a peer that gave up first learns the rank when it closes.
  return status.ok()
             ? closed
             : absl::Status(status.code(), absl::StrCat(status.message(), "; ", closed.message()));
}

std::vector<RankOutcome> LiveAndDie(const Death& death) {
  const GroupOptions options = Options();
  const absl::Time start = absl::Now();
  const auto outcomes = RunRankProcesses(kWorld, absl::Seconds(30),
                                         [&](int rank) { return Live(options, death, rank); });
  EXPECT_LT(absl::Now() - start, absl::Seconds(8));
  glob_t left{};
  EXPECT_EQ(glob(absl::StrCat("/dev/shm/stoker_", options.name, "_*").c_str(), 0, nullptr, &left),
            GLOB_NOMATCH)
      << "left behind: " << left.gl_pathv[0];
  globfree(&left);
  return outcomes;
}

void ExpectNamedBySurvivors(const Death& death, const std::vector<RankOutcome>& outcomes) {
  for (int rank = 0; rank < kWorld; ++rank) {
    if (rank == death.rank) {
      EXPECT_EQ(outcomes[rank].kind, RankOutcome::Kind::kSignalled) << outcomes[rank].status;
    } else {
      EXPECT_FALSE(outcomes[rank].status.ok()) << "rank " << rank;
      EXPECT_TRUE(
          absl::StrContains(outcomes[rank].status.message(), absl::StrCat("rank ", death.rank)))
          << "rank " << rank << ": " << outcomes[rank].status;
    }
  }
}

// Plan, health page twice, workspaces three times; launched, resetting, wiping; closing.
constexpr int kExchangeCalls = 10;

class Deaths : public ::testing::TestWithParam<int> {};  // the rank that dies

TEST_P(Deaths, BeforeEveryExchange) {
  for (int call = 0; call < kExchangeCalls; ++call) {
    const Death death{.rank = GetParam(), .exchange_call = call};
    SCOPED_TRACE(Describe(death));
    ExpectNamedBySurvivors(death, LiveAndDie(death));
  }
}

TEST_P(Deaths, AfterEveryExchange) {
  // After the last one the others have closed already.
  for (int call = 0; call < kExchangeCalls - 1; ++call) {
    const Death death{.rank = GetParam(), .exchange_call = call, .after = true};
    SCOPED_TRACE(Describe(death));
    ExpectNamedBySurvivors(death, LiveAndDie(death));
  }
}

TEST_P(Deaths, AfterTheLastExchangeNobodyMinds) {
  const Death death{.rank = GetParam(), .exchange_call = kExchangeCalls - 1, .after = true};
  const auto outcomes = LiveAndDie(death);
  for (int rank = 0; rank < kWorld; ++rank) {
    if (rank == death.rank) continue;
    EXPECT_TRUE(outcomes[rank].status.ok()) << outcomes[rank].status;
  }
  EXPECT_EQ(outcomes[death.rank].kind, RankOutcome::Kind::kSignalled);
}

TEST_P(Deaths, InsideALaunch) {
  for (int token : {0, kTokens - 1}) {
    for (const Death& death : {Death{.rank = GetParam(), .producing = token},
                               Death{.rank = GetParam(), .consuming = token}}) {
      SCOPED_TRACE(Describe(death));
      ExpectNamedBySurvivors(death, LiveAndDie(death));
    }
  }
}

TEST(Deaths, ThePageOfAGroupThatWasKilledWholeGoesAtTheNextStart) {
  GroupOptions options = Options();
  const std::string pages = absl::StrCat("/dev/shm/stoker_", options.name, "_*_health");
  const auto count = [&pages] {
    glob_t found{};
    glob(pages.c_str(), 0, nullptr, &found);
    const size_t number = found.gl_pathc;
    globfree(&found);
    return number;
  };
  RunRankProcesses(kWorld, absl::Seconds(30), [&](int rank) -> absl::Status {
    STOKER_ASSIGN_OR_RETURN(auto exchange,
                            MakeSocketExchange(options.name, rank, kWorld, options.setup_timeout));
    STOKER_ASSIGN_OR_RETURN(auto communicator, CpuCommunicator::Create(options, *exchange));
    STOKER_RETURN_IF_ERROR(exchange->Barrier("made", absl::Seconds(5)));
    std::raise(SIGKILL);
    return absl::OkStatus();
  });
  EXPECT_EQ(count(), 1u);
  // Another group, whatever its name.
  LiveAndDie(Death{});
  EXPECT_EQ(count(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Deaths, ::testing::Range(0, kWorld));

}  // namespace
}  // namespace stoker::comm
