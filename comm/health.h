// The health page of a group (comm/health_page.h): its creation, its reading, its words.
//
// One page a group, in POSIX shared memory of mode 0600, created by rank 0. Reading is thread-safe
// and needs no cooperation of the ranks. Whatever a page holds is treated as untrusted: fields out
// of range are printed as such and never used as an index.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/shared_memory.h"
#include "comm/group.h"
#include "comm/health_page.h"

namespace stoker::comm {

class Health {
 public:
  // Collective.
  static absl::StatusOr<Health> Create(const GroupPlan& plan, int device, RankExchange& exchange,
                                       absl::Duration timeout);

  HealthPage* page() const { return static_cast<HealthPage*>(memory_.data()); }
  RankHealth* own() const { return &page()->ranks[rank_]; }
  int64_t bytes() const { return memory_.bytes(); }

  // OK, or the first failure that any rank reported in this generation.
  absl::Status Check() const;
  // Forgets this rank's record and starts the next generation's.
  void Wipe(Generation generation);

 private:
  SharedMemory memory_;
  int rank_ = 0;
};

// The status of a page: of the records of its generation, the one of the earliest epoch.
absl::Status StatusOf(const HealthPage& page);
// A page as somebody else read it, and when, on both clocks of the host.
struct HealthReading {
  HealthPage page;
  uint64_t monotonic_ns = 0, realtime_ns = 0;
};
// A copy, word by word, while the group goes on.
void ReadPage(const HealthPage& page, HealthReading* reading);
// True if a rank waits, and the two readings do not yet show for whom.
bool WantsALaterReading(const HealthReading& earlier, const HealthReading& now);
// For people: whom the group waited for, longest first; per rank its process, whom it waits for at
// the moment and since when, its waits per peer and its last launches, oldest first. A page does
// not say who is waited for now: that is whoever's total has grown between the two readings. Since
// when is told by the clock of CPU ranks, and by that of a GPU where it counts as the host's does.
std::string Describe(const HealthReading& earlier, const HealthReading& now);
std::string Describe(const LaunchDescriptor& descriptor, int tokens);

}  // namespace stoker::comm
