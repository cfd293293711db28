// One kernel an exchange for GPUs without clusters and programmatic launch. Not shipped from here
// (the table has all of them in builds for all architectures): compiled for sm_80 alone, so that
// every build and the audit of the PTX see those branches of the environment.
#include "moe/kernel_entry.cuh"

namespace stoker::moe {

extern const void* const kKernelsBeforeSm90[];
const void* const kKernelsBeforeSm90[] = {
    reinterpret_cast<const void*>(FusedKernel<Finalize, comm::OneShot, comm::Bf16, 4, 1>),
    reinterpret_cast<const void*>(FusedKernel<Finalize, comm::TwoShot, comm::Bf16, 4, 1>),
};

}  // namespace stoker::moe
