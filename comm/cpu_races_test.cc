// What other threads may do to a member while it launches, resets or closes. Run it under
// ThreadSanitizer and AddressSanitizer as well.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "comm/cpu_launches.h"
#include "testing/cpu_world.h"
#include "testing/long_run.h"

namespace stoker::comm {
namespace {

using stoker::testing::RunCpuThreads;

GroupOptions Options(absl::Duration timeout = absl::Seconds(20)) {
  GroupOptions options;
  options.name = stoker::testing::UniqueGroupName();
  options.capacity = 4;
  options.hidden_max = 64;
  options.setup_timeout = absl::Seconds(20);
  options.timeout = options.startup_timeout = timeout;
  return options;
}

void ExpectAllOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

// Runs an action again and again in a thread of its own.
class Hammer {
 public:
  explicit Hammer(std::function<void()> action)
      : thread_([this, action = std::move(action)] {
          while (!stop_.load()) {
            action();
            std::this_thread::yield();
          }
        }) {}
  ~Hammer() { Stop(); }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

TEST(CpuRaces, ClosingReleasesALaunchThatWaitsForAPeerThatCloses) {
  const auto statuses = RunCpuThreads(
      2, Options(), [](CpuCommunicator& communicator, RankExchange& exchange) -> absl::Status {
        if (communicator.plan().rank == 1) return communicator.Close(exchange, absl::Seconds(1));
        absl::Status launched;
        std::atomic<bool> started = false;
        std::thread launcher([&] {
          launched = LaunchAndCheck(communicator, 2, {.producing = [&](int) { started = true; }});
        });
        while (!started) std::this_thread::yield();
        const absl::Time start = absl::Now();
        EXPECT_TRUE(communicator.Close(exchange, absl::Seconds(1)).ok());
        EXPECT_LT(absl::Now() - start, absl::Seconds(4));
        launcher.join();
        EXPECT_FALSE(launched.ok());
        return absl::OkStatus();
      });
  ExpectAllOk(statuses);
}

TEST(CpuRaces, ClosingWaitsForALaunchThatCanEnd) {
  const auto statuses = RunCpuThreads(
      2, Options(), [](CpuCommunicator& communicator, RankExchange& exchange) -> absl::Status {
        if (communicator.plan().rank == 1) absl::SleepFor(absl::Milliseconds(100));
        absl::Status launched;
        std::atomic<bool> started = false;
        std::thread launcher([&] {
          launched =
              LaunchAndCheck(communicator, 2,
                             {
                                 .producing = [&](int) { started = true; },
                                 .consuming = [](int) { absl::SleepFor(absl::Milliseconds(100)); },
                             });
        });
        while (!started) std::this_thread::yield();
        const absl::Status closed = communicator.Close(exchange, absl::Seconds(5));
        launcher.join();
        STOKER_RETURN_IF_ERROR(launched);
        return closed;
      });
  ExpectAllOk(statuses);
}

TEST(CpuRaces, ALaunchThatNeverEndsKeepsTheMemoryAndIsAnErrorOfClose) {
  const auto statuses = RunCpuThreads(
      2, Options(), [](CpuCommunicator& communicator, RankExchange& exchange) -> absl::Status {
        std::atomic<bool> started = false, stuck = true;
        std::thread launcher([&] {
          LaunchAndCheck(communicator, 1,
                         {.producing =
                              [&](int) {
                                started = true;
                                while (stuck) absl::SleepFor(absl::Milliseconds(1));
                              }})
              .IgnoreError();
        });
        while (!started) std::this_thread::yield();
        const absl::Status closed = communicator.Close(exchange, absl::Milliseconds(200));
        // The launch goes on in the memory that Close has left.
        stuck = false;
        launcher.join();
        EXPECT_EQ(closed.code(), absl::StatusCode::kDeadlineExceeded) << closed;
        EXPECT_TRUE(absl::StrContains(closed.message(), "did not end")) << closed;
        return absl::OkStatus();
      });
  ExpectAllOk(statuses);
}

TEST(CpuRaces, ResetWaitsForALaunchThatIsStillMakingItsRows) {
  const auto statuses = RunCpuThreads(
      2, Options(), [](CpuCommunicator& communicator, RankExchange& exchange) -> absl::Status {
        absl::Status launched;
        std::atomic<bool> started = false;
        std::thread launcher;
        if (communicator.plan().rank == 0) {
          launcher = std::thread([&] {
            launched = LaunchAndCheck(communicator, 1, {.producing = [&](int) {
                                        started = true;
                                        absl::SleepFor(absl::Milliseconds(300));
                                      }});
          });
          while (!started) std::this_thread::yield();
        }
        // Only now, as a launch that begins after the reset's stop makes no rows.
        const absl::Status met = exchange.Barrier("making rows", absl::Seconds(5));
        const absl::Status reset = met.ok() ? communicator.Reset(exchange, absl::Seconds(5)) : met;
        if (launcher.joinable()) {
          launcher.join();
          EXPECT_FALSE(launched.ok());
        }
        STOKER_RETURN_IF_ERROR(reset);
        for (int i = 0; i < testing::Repetitions(100, 20'000); ++i) {
          STOKER_RETURN_IF_ERROR(LaunchAndCheck(communicator, i % 5));
        }
        return absl::OkStatus();
      });
  ExpectAllOk(statuses);
}

// Runs `before` or `after` in the middle of a collective call.
class InterruptedExchange : public RankExchange {
 public:
  using Hook = std::function<void(absl::string_view what)>;
  InterruptedExchange(RankExchange& real, Hook before, Hook after)
      : real_(real), before_(std::move(before)), after_(std::move(after)) {}
  int rank() const override { return real_.rank(); }
  int world() const override { return real_.world(); }
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view what,
                                                     absl::string_view message,
                                                     absl::Duration timeout) override {
    before_(what);
    auto messages = real_.AllGather(what, message, timeout);
    after_(what);
    return messages;
  }

 private:
  RankExchange& real_;
  Hook before_;
  Hook after_;
};

TEST(CpuRaces, AStopBetweenTwoRanksWipesStopsBoth) {
  const auto statuses = RunCpuThreads(
      2, Options(), [](CpuCommunicator& communicator, RankExchange& exchange) -> absl::Status {
        const int rank = communicator.plan().rank;
        // Rank 0 has wiped when it stops the group, rank 1 not yet.
        InterruptedExchange interrupted(
            exchange,
            [&](absl::string_view what) {
              if (rank == 0 && absl::StrContains(what, "wiping")) {
                EXPECT_TRUE(communicator.Abort().ok());
              }
            },
            [&](absl::string_view what) {
              if (rank == 1 && what == "resetting") absl::SleepFor(absl::Milliseconds(200));
            });
        STOKER_RETURN_IF_ERROR(communicator.Reset(interrupted, absl::Seconds(5)));
        const absl::Time start = absl::Now();
        const absl::Status launched = LaunchAndCheck(communicator, 1);
        EXPECT_EQ(launched.code(), absl::StatusCode::kAborted) << launched;
        EXPECT_LT(absl::Now() - start, absl::Seconds(5)) << "stopped by its deadline only";
        return exchange.Barrier("end", absl::Seconds(30));
      });
  ExpectAllOk(statuses);
}

TEST(CpuRaces, AbortsDuringResetsStopTheGroupWholeOrNotAtAll) {
  const auto statuses = RunCpuThreads(
      3, Options(), [](CpuCommunicator& communicator, RankExchange& exchange) -> absl::Status {
        {
          Hammer aborts([&] { EXPECT_TRUE(communicator.Abort().ok()); });
          for (int round = 0; round < testing::Repetitions(100, 20'000); ++round) {
            STOKER_RETURN_IF_ERROR(communicator.Reset(exchange, absl::Seconds(10)));
            if (!LaunchAndCheck(communicator, 2).ok()) {
              EXPECT_FALSE(communicator.Health().ok()) << "NaN without a reason";
            }
          }
        }
        STOKER_RETURN_IF_ERROR(exchange.Barrier("no more aborts", absl::Seconds(10)));
        STOKER_RETURN_IF_ERROR(communicator.Reset(exchange, absl::Seconds(10)));
        for (int i = 0; i < testing::Repetitions(100, 20'000); ++i) {
          STOKER_RETURN_IF_ERROR(LaunchAndCheck(communicator, i % 5));
        }
        return absl::OkStatus();
      });
  ExpectAllOk(statuses);
}

TEST(CpuRaces, LaunchesDuringResetsAndCloseAreRightOrRefused) {
  const auto statuses = RunCpuThreads(
      3, Options(), [](CpuCommunicator& communicator, RankExchange& exchange) -> absl::Status {
        std::atomic<int> right = 0;
        Hammer launches([&] {
          const absl::Status status = LaunchAndCheck(communicator, 2);
          right += status.ok();
          EXPECT_NE(status.code(), absl::StatusCode::kDataLoss) << status;
        });
        for (int round = 0; round < 20; ++round) {
          const int before = right;
          // Some launches have to fit between two resets, else nothing is tested.
          while (right < before + 3) absl::SleepFor(absl::Milliseconds(1));
          STOKER_RETURN_IF_ERROR(exchange.Barrier("launched", absl::Seconds(10)));
          STOKER_RETURN_IF_ERROR(communicator.Reset(exchange, absl::Seconds(10)));
        }
        // A peer may be one launch ahead, which Close then has to release.
        communicator.Close(exchange, absl::Milliseconds(500)).IgnoreError();
        EXPECT_TRUE(absl::StrContains(LaunchAndCheck(communicator, 1).message(), "closed"));
        return absl::OkStatus();
      });
  ExpectAllOk(statuses);
}

TEST(CpuRaces, NothingTouchesAClosedGroup) {
  const auto statuses = RunCpuThreads(
      2, Options(), [](CpuCommunicator& communicator, RankExchange& exchange) -> absl::Status {
        Hammer aborts([&] { communicator.Abort().IgnoreError(); });
        Hammer readers([&] { communicator.Health().IgnoreError(); });
        STOKER_RETURN_IF_ERROR(communicator.Close(exchange, absl::Seconds(5)));
        aborts.Stop();
        readers.Stop();
        for (const absl::Status& status :
             {communicator.Abort(), communicator.SetTimeout(absl::Seconds(1)),
              communicator.Reset(exchange, absl::Seconds(1)), LaunchAndCheck(communicator, 1)}) {
          EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
          EXPECT_TRUE(absl::StrContains(status.message(), "closed")) << status;
        }
        return absl::OkStatus();
      });
  ExpectAllOk(statuses);
}

TEST(CpuRaces, AMemberLostInTheMiddleOfAResetEndsTheGroup) {
  const auto statuses = RunCpuThreads(
      2, Options(), [](CpuCommunicator& communicator, RankExchange& exchange) -> absl::Status {
        if (communicator.plan().rank == 1) {
          const uint32_t epoch = 2;
          const std::string message(reinterpret_cast<const char*>(&epoch), sizeof(epoch));
          exchange.AllGather("resetting", message, absl::Seconds(5)).status().IgnoreError();
          return absl::CancelledError("gone");
        }
        const absl::Status reset = communicator.Reset(exchange, absl::Milliseconds(300));
        EXPECT_TRUE(absl::StrContains(reset.message(), "rank 1")) << reset;
        const absl::Time start = absl::Now();
        for (const absl::Status& status : {communicator.Health(), LaunchAndCheck(communicator, 1),
                                           communicator.Reset(exchange, absl::Seconds(1))}) {
          EXPECT_TRUE(absl::StrContains(status.message(), "its reset failed")) << status;
          EXPECT_TRUE(absl::StrContains(status.message(), "rank 1")) << status;
        }
        EXPECT_LT(absl::Now() - start, absl::Seconds(1));
        EXPECT_FALSE(communicator.Close(exchange, absl::Milliseconds(300)).ok());
        return absl::OkStatus();
      });
  EXPECT_TRUE(statuses[0].ok()) << statuses[0];
}

TEST(CpuRaces, StoppingAFailedGroupDoesNotHideWhyItFailed) {
  const auto statuses =
      RunCpuThreads(3, Options(absl::Milliseconds(150)),
                    [](CpuCommunicator& communicator, RankExchange& exchange) -> absl::Status {
                      if (communicator.plan().rank != 0) {
                        EXPECT_FALSE(LaunchAndCheck(communicator, 1).ok());
                      }
                      STOKER_RETURN_IF_ERROR(exchange.Barrier("failed", absl::Seconds(10)));
                      STOKER_RETURN_IF_ERROR(communicator.Abort());
                      STOKER_RETURN_IF_ERROR(exchange.Barrier("stopped", absl::Seconds(10)));
                      EXPECT_TRUE(absl::StrContains(communicator.Health().message(), "for rank 0"))
                          << communicator.Health();
                      return absl::OkStatus();
                    });
  ExpectAllOk(statuses);
}

}  // namespace
}  // namespace stoker::comm
