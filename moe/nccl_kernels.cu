#include "comm/nccl_rows.h"
#include "moe/kernel_entry.cuh"
#include "moe/kernel_table.h"

namespace stoker::moe {
namespace {

const KernelRow kTable[] = {
#define STOKER_KERNEL(kind, exchange, type, ranks, vectors) \
  KernelRow{comm::Op::k##kind,                              \
            comm::Protocol::k##exchange,                    \
            comm::type::kType,                              \
            ranks,                                          \
            vectors,                                        \
            reinterpret_cast<const void*>(                  \
                FusedKernel<kind, comm::exchange, comm::type, ranks, vectors>)},
#define STOKER_KERNELS_NCCL
#include "moe/kernels.inc"
#undef STOKER_KERNEL
};

}  // namespace

std::span<const KernelRow> NcclKernels() { return kTable; }

}  // namespace stoker::moe
