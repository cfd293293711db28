#include "base/bounded_wait.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace stoker {
namespace {

TEST(Clock, MonotonicAdvancesAtLeastByASleep) {
  Clock& clock = Clock::Monotonic();
  const absl::Duration start = clock.Now();
  clock.SleepFor(absl::Milliseconds(3));
  EXPECT_GE(clock.Now() - start, absl::Milliseconds(3));
}

TEST(Deadline, PassesExactlyAtItsTime) {
  SimulatedClock clock;
  const Deadline deadline(clock, absl::Seconds(2));
  clock.Advance(absl::Seconds(2) - absl::Nanoseconds(1));
  EXPECT_FALSE(deadline.Passed());
  EXPECT_EQ(deadline.Left(), absl::Nanoseconds(1));
  clock.Advance(absl::Nanoseconds(1));
  EXPECT_TRUE(deadline.Passed());
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(deadline.Left(), absl::ZeroDuration());
}

TEST(Deadline, SoonerOfTakesTheEarlierOne) {
  SimulatedClock clock;
  const Deadline deadline(clock, absl::Seconds(2));
  EXPECT_EQ(deadline.SoonerOf(absl::Seconds(1)).Left(), absl::Seconds(1));
  EXPECT_EQ(deadline.SoonerOf(absl::Seconds(3)).Left(), absl::Seconds(2));
}

TEST(WaitUntil, TheErrorNamesWhatAndHowLong) {
  SimulatedClock clock;
  const absl::Status status =
      WaitUntil([] { return false; }, Deadline(clock, absl::Seconds(5)), "the header of rank 3");
  EXPECT_EQ(status, absl::DeadlineExceededError("the header of rank 3 did not happen within 5s"));
  EXPECT_EQ(clock.Now(), absl::Seconds(5));  // it never sleeps past its deadline
}

TEST(WaitUntil, ATrueConditionWinsOverADeadlineThatHasPassed) {
  SimulatedClock clock;
  for (const absl::Duration timeout : {absl::ZeroDuration(), -absl::Seconds(1)}) {
    EXPECT_TRUE(WaitUntil([] { return true; }, Deadline(clock, timeout), "x").ok());
    EXPECT_FALSE(WaitUntil([] { return false; }, Deadline(clock, timeout), "x").ok());
  }
}

TEST(WaitUntil, WhatComesTrueDuringTheLastSleepIsSeen) {
  SimulatedClock clock;
  const Deadline deadline(clock, absl::Seconds(1));
  auto at_the_end = [&clock] { return clock.Now() >= absl::Seconds(1); };
  EXPECT_TRUE(WaitUntil(at_the_end, deadline, "the end").ok());
}

TEST(WaitUntil, SleepsAreShortSoThatAWaitEndsSoon) {
  SimulatedClock clock;
  auto after_half_a_second = [&clock] { return clock.Now() >= absl::Milliseconds(500); };
  ASSERT_TRUE(WaitUntil(after_half_a_second, Deadline(clock, absl::Seconds(9)), "x").ok());
  EXPECT_LE(clock.Now(), absl::Milliseconds(502));
}

TEST(WaitUntil, SeesAnotherThreadsStore) {
  std::atomic<bool> flag{false};
  std::thread other([&flag] {
    Clock::Monotonic().SleepFor(absl::Milliseconds(20));
    flag.store(true);
  });
  const absl::Status status = WaitUntil([&flag] { return flag.load(); },
                                        Deadline(Clock::Monotonic(), absl::Seconds(20)), "x");
  other.join();
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace stoker
