#include "moe/kernels.h"

#include "moe/kernel_table.h"

namespace stoker::moe {

const void* FindKernel(const KernelKey& key) {
  const KernelRow* best = nullptr;
  for (const auto rows :
       {FinalizeAndPlainKernels(), ReductionKernels(), AllReduceKernels(), NcclKernels()}) {
    for (const KernelRow& row : rows) {
      if (row.op == key.op && row.protocol == key.protocol && row.wire_type == key.wire_type &&
          row.vectors == key.vectors && row.ranks >= key.ranks &&
          (best == nullptr || row.ranks < best->ranks)) {
        best = &row;
      }
    }
  }
  return best == nullptr ? nullptr : best->kernel;
}

}  // namespace stoker::moe
