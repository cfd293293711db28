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
// For people: per rank its state, whom it waits for and since when, waits per peer, last launches.
std::string Describe(const HealthPage& page);
std::string Describe(const LaunchDescriptor& descriptor, int tokens);

}  // namespace stoker::comm
