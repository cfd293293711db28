// Environments for test-only builds of the kernels: as shipped, and with random delays before
// packets are stored and loaded.
#pragma once

#include <cstdint>

#include "comm/cuda_environment.cuh"
#include "comm/exchange_params.h"

namespace stoker::testing {

using comm::ExchangeParams;
using comm::Packet;

class ShippedEnvironment : public comm::CudaEnvironment {
 public:
  __device__ explicit ShippedEnvironment(const ExchangeParams&) {}
};

class DelayedEnvironment : public comm::CudaEnvironment {
 public:
  __device__ explicit DelayedEnvironment(const ExchangeParams&) {}
  __device__ Packet LoadPacket(const Packet* p) {
    Delay();
    return CudaEnvironment::LoadPacket(p);
  }
  __device__ void StorePacket(Packet* p, const Packet& v) {
    Delay();
    CudaEnvironment::StorePacket(p, v);
  }

 protected:
  // One warp in 256 waits up to 8192 cycles, about 4 us.
  __device__ void Delay() {
    uint32_t hash =
        static_cast<uint32_t>(clock64()) ^ (blockIdx.x * 2654435761u) ^ (threadIdx.x / 32 * 40503u);
    hash = (hash ^ (hash >> 15)) * 0x2c1b3c6du;
    hash ^= hash >> 12;
    if ((hash & 0xFFu) != 0u) return;
    const long long end = clock64() + (hash >> 19);
    while (clock64() < end) {
    }
  }
};

}  // namespace stoker::testing
