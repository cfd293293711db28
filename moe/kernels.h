// Finding the kernel for a launch in the table moe/kernels.inc.
#pragma once

#include "comm/protocol.h"

namespace stoker::moe {

struct KernelKey {
  comm::Op op;
  comm::Protocol protocol;
  comm::WireType wire_type;
  int ranks;    // at least the world; the smallest such in the table is used
  int vectors;  // per thread
};

// The kernel's host-side address for cudaLaunchKernelExC, or null if the table has none.
const void* FindKernel(const KernelKey& key);

}  // namespace stoker::moe
