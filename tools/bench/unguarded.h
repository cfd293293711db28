// The fused finalize without what makes it safe: no header, no ticket, no deadline, no look at the
// abort word, no report; the last CTA to finish advances the epoch. To see what safety costs
// (docs/decisions/launch_shape.md); it takes the parameters of the shipped kernel and can stand in
// for it in a group in which nothing goes wrong.
#pragma once

#include "comm/protocol.h"

namespace stoker::bench {

// bf16; null where there is no such build (worlds over 4, more than two vectors a thread).
const void* UnguardedFinalizeKernel(comm::Protocol protocol, int world, int vectors);

}  // namespace stoker::bench
