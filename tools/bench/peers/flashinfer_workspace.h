// The workspace that FlashInfer's Lamport and two-shot kernels expect, for N ranks that share one
// GPU and one process: per rank a data buffer, barrier flags, three Lamport arenas and a private
// block of counters, and a device table of pointers to all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

namespace stoker::bench {

class FlashInferWorkspace {
 public:
  // `world` 2, 4 or 8; rows of a 16-bit type.
  static absl::StatusOr<std::unique_ptr<FlashInferWorkspace>> Create(int world, int tokens_max,
                                                                     int hidden);
  ~FlashInferWorkspace();
  void** table(int rank) const { return tables_[rank]; }
  int world() const { return static_cast<int>(tables_.size()); }

 private:
  FlashInferWorkspace() = default;
  absl::StatusOr<void*> Allocate(int64_t bytes);
  std::vector<void*> buffers_;
  std::vector<void**> tables_;  // the device pointer table of each rank
};

}  // namespace stoker::bench
