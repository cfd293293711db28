// Finalize alone on the CPU: host pointers, synchronous, the bits of moe/reference.h.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "moe/arguments.h"

namespace stoker::moe {

// `output` is [tokens, H] of T and overlaps no input. From any thread; in the calling thread.
// Errors: InvalidArgument (moe/validate.h); OutOfRange for the first index that is not below
// row_count, and then the rows of every token with such an index are NaN throughout.
absl::Status MoeFinalizeOnCpu(const Shape& shape, const FinalizeArguments& finalize, void* output);

}  // namespace stoker::moe
