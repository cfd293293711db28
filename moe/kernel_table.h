// The parts of the table moe/kernels.inc, one a source file of kernels, so that they compile side
// by side.
#pragma once

#include <span>

#include "comm/protocol.h"

namespace stoker::moe {

struct KernelRow {
  comm::Op op;
  comm::Protocol protocol;
  comm::WireType wire_type;
  int ranks;
  int vectors;
  const void* kernel;
};

std::span<const KernelRow> FinalizeAndPlainKernels();
std::span<const KernelRow> ReductionKernels();
std::span<const KernelRow> AllReduceKernels();
std::span<const KernelRow> NcclKernels();

}  // namespace stoker::moe
