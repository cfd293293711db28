// What this process may use: CPUs and memory after affinity and control groups, both versions.
//
//   const MachineLimits limits = ReadMachineLimits();
//   options.compute_threads = limits.cpus;
//
// More threads than CPUs make every spin a wait for somebody who does not run, and a cache above
// the group's memory limit is killed, not refused. Thread-safe; reads files at each call. A limit
// that cannot be read is no limit.
#pragma once

#include <cstdint>
#include <string>

namespace stoker::offload {

struct MachineLimits {
  int cpus = 1;                        // affinity, and the quota rounded up; at least 1
  uint64_t memory_bytes = UINT64_MAX;  // the group's limit or the machine's memory, the smaller
};

// `root` is put before every path, for tests; `affinity` is the number of CPUs of the affinity
// mask.
MachineLimits ReadMachineLimits(const std::string& root, int affinity);
MachineLimits ReadMachineLimits();

}  // namespace stoker::offload
