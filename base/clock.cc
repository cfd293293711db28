#include "base/clock.h"

#include <ctime>

#include "absl/time/clock.h"

namespace stoker {
namespace {

class MonotonicClock : public Clock {
 public:
  absl::Duration Now() override {
    timespec now{};
    // Cannot fail: the clock exists on every Linux and the address is good.
    clock_gettime(CLOCK_MONOTONIC, &now);
    return absl::DurationFromTimespec(now);
  }
  void SleepFor(absl::Duration duration) override { absl::SleepFor(duration); }
};

}  // namespace

Clock& Clock::Monotonic() {
  static auto* clock = new MonotonicClock();
  return *clock;
}

}  // namespace stoker
