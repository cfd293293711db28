// The kernel of moe/local_finalize.h.
#pragma once

#include "comm/protocol.h"

namespace stoker::moe {

inline constexpr int kLocalFinalizeThreads = 128;  // a CTA's; each does one vector of one token

// Its host-side address. Parameters: FinalizeParams (moe/kernel_params.h), the output as
// comm::Packet*, and as int the CTAs of a token, which follow each other in the grid.
const void* LocalFinalizeKernelOf(comm::WireType type);

}  // namespace stoker::moe
