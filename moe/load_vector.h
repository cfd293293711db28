// Loading one vector of a row as FP32, from rows of T or of FP32.
#pragma once

#include <cstdint>

#include "comm/failure_path.h"
#include "comm/protocol.h"
#include "comm/wire_type.h"

namespace stoker::moe {

// Eight FP32 values of one vector from T or FP32 memory.
template <class T, class Env>
STOKER_DEVICE void LoadVector(Env env, const void* base, bool fp32, int64_t vector,
                              float (&values)[comm::kPacketElements]) {
  if (fp32) {
    const comm::Packet* packets = static_cast<const comm::Packet*>(base) + 2 * vector;
    const comm::Packet low = env.LoadInput(packets);
    const comm::Packet high = env.LoadInput(packets + 1);
#pragma unroll
    for (int w = 0; w < comm::kPacketWords; ++w) {
      values[w] = comm::FloatFromBits(low.word[w]);
      values[w + 4] = comm::FloatFromBits(high.word[w]);
    }
    return;
  }
  const comm::Packet packet = env.LoadInput(static_cast<const comm::Packet*>(base) + vector);
#pragma unroll
  for (int w = 0; w < comm::kPacketWords; ++w) {
    comm::Unpack<T>(packet.word[w], values[2 * w], values[2 * w + 1]);
  }
}

}  // namespace stoker::moe
