// What a group tells the world about its health: one page of POSIX shared memory that every rank
// writes (a GPU rank through a mapping registered with CUDA) and that any process of the same user
// may read while the group runs.
//
// Writers: rank r writes only ranks[r], and only while it launches or fails. Readers see each
// 32- or 64-bit word whole; a record counts only once `valid` holds the generation it was written
// in, which its writer stores last, after a system-wide fence.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/protocol.h"

namespace stoker::comm {

inline constexpr uint64_t kHealthMagic = 0x31484c5448544b53ull;

struct alignas(64) FailureRecord {
  uint32_t valid;  // 0, or generation + 1 once every other field has been written
  FailureCode code;
  int32_t rank;
  int32_t peer;    // -1 where no single peer is to blame
  int32_t token;   // -1 where the failure is of the launch
  int32_t packet;  // -1 likewise
  uint32_t epoch;
  uint32_t generation;
  Header expected;  // what this rank sent
  Header seen;      // what it last read from the peer
  // kTimeout: nanoseconds waited. kIndexOutOfRange: index in the lower half, rows in the upper
  // half.
  uint64_t detail;
};

struct alignas(64) RankHealth {
  FailureRecord record;
  uint64_t waited_ns[kWorldMax];  // total per peer since creation
  uint64_t waiting_since_ns;      // clock of the rank's device; 0 while it does not wait
  int32_t pid;
  int32_t device;         // CUDA device ordinal, or -1
  uint64_t heartbeat_ns;  // host clock of the last host-side call
  uint32_t launches_logged;
  uint32_t reserved[7];
  // The rank's last launches: copied from its workspace every kLaunchRing launches, and at once
  // when a launch has to wait or fails.
  LaunchEntry ring[kLaunchRing];
};

struct alignas(4096) HealthPage {
  uint64_t magic;
  uint32_t version;
  int32_t world;
  int32_t capacity;
  int32_t stride;
  uint32_t generation;
  char group[64];
  RankHealth ranks[kWorldMax];
};

}  // namespace stoker::comm
