// Time that only goes forward, as an interface, so that what waits can be tested without waiting.
//
//   const Deadline deadline(Clock::Monotonic(), absl::Seconds(5));
//   while (!deadline.Passed()) ...
//
// A wall clock is not used for deadlines: it jumps when somebody sets it. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace stoker {

class Clock {
 public:
  virtual ~Clock() = default;
  // Since a start that only this clock knows.
  virtual absl::Duration Now() = 0;
  virtual void SleepFor(absl::Duration duration) = 0;

  // CLOCK_MONOTONIC; lives as long as the process.
  static Clock& Monotonic();
};

// Stands still until it is told to go on; a sleeper moves it and does not block.
class SimulatedClock : public Clock {
 public:
  absl::Duration Now() override { return absl::Nanoseconds(now_ns_.load()); }
  void SleepFor(absl::Duration duration) override { Advance(duration); }
  void Advance(absl::Duration duration) { now_ns_.fetch_add(absl::ToInt64Nanoseconds(duration)); }

 private:
  std::atomic<int64_t> now_ns_{0};
};

// The end of a wait. A timeout of zero or less has passed already.
class Deadline {
 public:
  Deadline(Clock& clock, absl::Duration timeout)
      : clock_(&clock), timeout_(timeout), at_(clock.Now() + timeout) {}

  // The earlier of this deadline and `timeout` from now.
  Deadline SoonerOf(absl::Duration timeout) const {
    const Deadline other(*clock_, timeout);
    return other.at_ < at_ ? other : *this;
  }
  bool Passed() const { return clock_->Now() >= at_; }
  // Never negative.
  absl::Duration Left() const {
    const absl::Duration left = at_ - clock_->Now();
    return left > absl::ZeroDuration() ? left : absl::ZeroDuration();
  }
  // What it was made with; for messages.
  absl::Duration timeout() const { return timeout_; }
  Clock& clock() const { return *clock_; }

 private:
  Clock* clock_;
  absl::Duration timeout_;
  absl::Duration at_;
};

}  // namespace stoker
