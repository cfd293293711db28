// The one way to wait for a condition that nobody signals: a few looks in a row, then giving up the
// CPU between looks, then short sleeps. There is no variant without a deadline.
//
//   STOKER_RETURN_IF_ERROR(WaitUntil([&] { return flag.load(); }, deadline, "the flag of rank 3"));
//
// `condition` is called on the caller's thread only, and at least once even if the deadline has
// passed. Errors: kDeadlineExceeded, "<what> did not happen within <timeout>".
#pragma once

#include <sched.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace stoker {

template <class Condition>
absl::Status WaitUntil(Condition condition, const Deadline& deadline, absl::string_view what) {
  constexpr int kSpins = 200;
  constexpr int kYields = 50;
  constexpr absl::Duration kSleepMin = absl::Microseconds(20);
  constexpr absl::Duration kSleepMax = absl::Milliseconds(2);
  absl::Duration sleep = kSleepMin;
  for (int look = 0;; ++look) {
    // The deadline is read before the condition: what came true just in time is not missed.
    const bool last = deadline.Passed();
    if (condition()) return absl::OkStatus();
    if (last) break;
    if (look < kSpins) continue;
    if (look < kSpins + kYields) {
      sched_yield();
      continue;
    }
    deadline.clock().SleepFor(std::min(sleep, deadline.Left()));
    sleep = std::min(2 * sleep, kSleepMax);
  }
  return absl::DeadlineExceededError(
      absl::StrCat(what, " did not happen within ", absl::FormatDuration(deadline.timeout())));
}

}  // namespace stoker
