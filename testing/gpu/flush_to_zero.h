// The plain all-reduce kernel (two ranks, one and two vectors a thread) compiled with -ftz=true:
// whether a word has arrived must not depend on floating-point modes.
#pragma once

#include "comm/protocol.h"

namespace stoker::testing {

const void* FlushToZeroPlainKernel(comm::WireType type, int vectors);

}  // namespace stoker::testing
