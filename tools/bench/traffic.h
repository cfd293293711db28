// The memory accesses of a fused launch without its waiting: the rate at which a rank's share of
// the GPU can do them, all ranks at once, is what a launch can reach at best.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/protocol.h"
#include "moe/arguments.h"

namespace stoker::bench {

class Traffic {
 public:
  static absl::StatusOr<std::unique_ptr<Traffic>> Create(comm::Protocol protocol, int world,
                                                         const moe::Shape& shape);
  ~Traffic();

  // How a rank's threads lie on its share of the SMs (CTAs an SM, threads a CTA), and how often a
  // launch does the accesses of one of Stoker's.
  struct Shape {
    int per_sm, threads, passes;
    std::string ToString() const;
  };
  // Once over, and `passes` times.
  static std::vector<Shape> Shapes(int passes);

  // Asynchronous. Reads the inputs and overwrites the outputs with rubbish.
  absl::Status Launch(int rank, const Shape& how, const moe::FinalizeArguments& finalize,
                      const moe::NormArguments& norm, bool programmatic, cudaStream_t stream);

 private:
  Traffic() = default;
  comm::Protocol protocol_ = comm::Protocol::kOneShot;
  int world_ = 0;
  moe::Shape shape_;
  std::vector<void*> mailboxes_;
};

}  // namespace stoker::bench
