// What tests of fault plans share: the seed, and the rows that GPU runs leave for the page.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "testing/faults/plans.h"

namespace stoker::testing {

// STOKER_SEED, or 1.
inline uint64_t FaultSeed() {
  const char* text = std::getenv("STOKER_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

// Appends a line of JSON to the file that STOKER_FAULT_ROWS names, if it does. STOKER_FAULT_RUN is
// the run's own part of the line: date, GPU, driver, commit.
inline void WriteFaultRow(const FaultPlan& plan, FaultWorld world, bool passed) {
  const char* path = std::getenv("STOKER_FAULT_ROWS");
  std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "a");
  if (file == nullptr) return;
  const char* run = std::getenv("STOKER_FAULT_RUN");
  const char* placement = world == FaultWorld::kGpuStreams                    ? "co-resident"
                          : std::getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr ? "MPS"
                                                                              : "time-sliced";
  std::fprintf(file,
               "{\"plan\":\"%s\",\"world\":\"%s\",\"placement\":\"%s\",\"result\":\"%s\"%s%s}\n",
               plan.name.c_str(), FaultWorldName(world), placement, passed ? "passed" : "FAILED",
               run == nullptr ? "" : ",", run == nullptr ? "" : run);
  std::fclose(file);
}

}  // namespace stoker::testing
