// What every RankExchange promises, run against each implementation that this folder has.
#include "comm/rank_exchange.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/socket_exchange.h"
#include "comm/thread_exchange.h"
#include "testing/unique_name.h"

namespace stoker::comm {
namespace {

struct Implementation {
  const char* name;
  std::vector<std::unique_ptr<RankExchange>> (*make)(int world);
};

std::vector<std::unique_ptr<RankExchange>> MakeSocketExchanges(int world) {
  const std::string group = stoker::testing::UniqueName("conformance");
  std::vector<std::unique_ptr<RankExchange>> exchanges(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      auto made = MakeSocketExchange(group, rank, world, absl::Seconds(20));
      EXPECT_TRUE(made.ok()) << made.status();
      if (made.ok()) exchanges[rank] = *std::move(made);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return exchanges;
}

class RankExchanges : public ::testing::TestWithParam<Implementation> {
 protected:
  // Runs `rank_main` for every rank on a thread of its own.
  void OnRanks(int world, const std::function<void(RankExchange&)>& rank_main) {
    auto exchanges = GetParam().make(world);
    for (const auto& exchange : exchanges) ASSERT_NE(exchange, nullptr);
    std::vector<std::thread> threads;
    for (auto& exchange : exchanges) {
      threads.emplace_back([&rank_main, &exchange] { rank_main(*exchange); });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

void ExpectMessage(const absl::Status& status, absl::StatusCode code, const char* part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_NE(status.message().find(part), std::string::npos) << status;
}

TEST_P(RankExchanges, EveryRankGetsEveryMessageByRankInEveryWorld) {
  for (int world = 1; world <= 8; ++world) {
    OnRanks(world, [world](RankExchange& exchange) {
      EXPECT_EQ(exchange.world(), world);
      for (int round = 0; round < 50; ++round) {
        const std::string tail(round * 100, 'x');
        auto all =
            exchange.AllGather("testing", absl::StrCat(exchange.rank(), tail), absl::Seconds(20));
        ASSERT_TRUE(all.ok()) << all.status();
        ASSERT_EQ(static_cast<int>(all->size()), world);
        for (int r = 0; r < world; ++r) EXPECT_EQ((*all)[r], absl::StrCat(r, tail));
      }
    });
  }
}

TEST_P(RankExchanges, TheLargestMessageOfEveryRankArrivesWithEveryByte) {
  OnRanks(8, [](RankExchange& exchange) {
    const auto message = [](int rank) {
      return std::string(RankExchange::kMessageBytesMax, static_cast<char>(200 + rank));
    };
    auto all = exchange.AllGather("large", message(exchange.rank()), absl::Seconds(20));
    ASSERT_TRUE(all.ok()) << all.status();
    for (int r = 0; r < 8; ++r) EXPECT_EQ((*all)[r], message(r));
  });
}

TEST_P(RankExchanges, ABarrierHoldsUntilTheLastRankIsThere) {
  OnRanks(3, [](RankExchange& exchange) {
    static std::atomic<bool> last_is_there;
    last_is_there = false;
    ASSERT_TRUE(exchange.Barrier("start", absl::Seconds(20)).ok());
    if (exchange.rank() == 2) {
      absl::SleepFor(absl::Milliseconds(200));
      last_is_there = true;
    }
    ASSERT_TRUE(exchange.Barrier("late", absl::Seconds(20)).ok());
    EXPECT_TRUE(last_is_there);
  });
}

TEST_P(RankExchanges, AMessageThatIsTooLongIsRefusedAndNothingIsLost) {
  OnRanks(2, [](RankExchange& exchange) {
    const std::string message(RankExchange::kMessageBytesMax + 1, 'x');
    ExpectMessage(exchange.AllGather("x", message, absl::Seconds(20)).status(),
                  absl::StatusCode::kInvalidArgument, "65537");
    EXPECT_TRUE(exchange.Barrier("x", absl::Seconds(20)).ok());
  });
}

TEST_P(RankExchanges, TheMissingAreNamedOnEveryRankAlsoOnThoseThatComeLate) {
  OnRanks(4, [](RankExchange& exchange) {
    ASSERT_TRUE(exchange.Barrier("first", absl::Seconds(20)).ok());
    if (exchange.rank() >= 2) absl::SleepFor(absl::Milliseconds(1500));
    ExpectMessage(exchange.Barrier("second", absl::Milliseconds(300)),
                  absl::StatusCode::kDeadlineExceeded,
                  "ranks 2, 3 of 4 did not arrive within 300ms");
  });
}

// A message of the call that failed must not stand for its rank in the next one.
TEST_P(RankExchanges, AfterAnErrorNoRankPassesALaterBarrier) {
  OnRanks(3, [](RankExchange& exchange) {
    if (exchange.rank() == 2) absl::SleepFor(absl::Milliseconds(600));
    EXPECT_FALSE(exchange.Barrier("second", absl::Milliseconds(200)).ok());
    const absl::Time start = absl::Now();
    ExpectMessage(exchange.Barrier("third", absl::Seconds(20)),
                  absl::StatusCode::kFailedPrecondition, "rank 2 of 3 did not arrive within 200ms");
    EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  });
}

TEST_P(RankExchanges, RanksInDifferentCallsAreToldBothNames) {
  OnRanks(2, [](RankExchange& exchange) {
    const absl::Status status =
        exchange.Barrier(exchange.rank() == 0 ? "resetting" : "closing", absl::Seconds(20));
    ExpectMessage(status, absl::StatusCode::kFailedPrecondition, "\"resetting\"");
    ExpectMessage(status, absl::StatusCode::kFailedPrecondition, "\"closing\"");
  });
}

INSTANTIATE_TEST_SUITE_P(All, RankExchanges,
                         ::testing::Values(Implementation{"Sockets", MakeSocketExchanges},
                                           Implementation{"Threads", MakeThreadExchanges}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace stoker::comm
