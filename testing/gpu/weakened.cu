#include "comm/launch_frame.h"
#include "comm/one_shot.h"
#include "moe/kernel_entry.cuh"
#include "testing/gpu/delayed_environment.cuh"
#include "testing/gpu/weakened.h"

namespace stoker::testing {
namespace {

struct WeakPoll : DelayedEnvironment {
  using DelayedEnvironment::DelayedEnvironment;
  __device__ Packet LoadPacket(const Packet* p) {
    Delay();
    return LoadInput(p);
  }
};

struct WeakPush : DelayedEnvironment {
  using DelayedEnvironment::DelayedEnvironment;
  __device__ void StorePacket(Packet* p, const Packet& v) {
    Delay();
    StoreOutput(p, v);
  }
};

struct WeakHeader : DelayedEnvironment {
  using DelayedEnvironment::DelayedEnvironment;
  __device__ uint64_t LoadHeader(const uint64_t* p) {
    uint64_t v;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
  }
  __device__ void StoreHeader(uint64_t* p, uint64_t v) {
    asm volatile("st.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
  }
};

struct RelaxedTicket : DelayedEnvironment {
  using DelayedEnvironment::DelayedEnvironment;
  __device__ uint32_t AtomicAddRelease(uint32_t* p, uint32_t v) { return AtomicAdd(p, v); }
};

struct NoHandOverFence : DelayedEnvironment {
  using DelayedEnvironment::DelayedEnvironment;
  __device__ void FenceDevice() {}
};

struct DeviceScopePackets : DelayedEnvironment {
  using DelayedEnvironment::DelayedEnvironment;
  __device__ Packet LoadPacket(const Packet* p) {
    Delay();
    Packet v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(p)
                 : "memory");
    return v;
  }
  __device__ void StorePacket(Packet* p, const Packet& v) {
    Delay();
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.word[0]),
                 "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3])
                 : "memory");
  }
};

template <class Env>
__global__ void __launch_bounds__(moe::kThreadsMax, 1)
    WeakenedKernelOf(const __grid_constant__ ExchangeParams params,
                     const __grid_constant__ moe::FinalizeParams producer_params,
                     const __grid_constant__ moe::RmsNormParams epilogue_params) {
  moe::FinalizeProducer<comm::Bf16> producer(producer_params);
  moe::RmsNormEpilogue<comm::Bf16, 2> epilogue(epilogue_params);
  comm::RunLaunch<comm::OneShot<comm::Bf16, 4>, 2>(Env(params), params, producer, epilogue);
}

template <class Env>
const void* Kernel() {
  return reinterpret_cast<const void*>(WeakenedKernelOf<Env>);
}

}  // namespace

const WeakenedKernel* WeakenedKernels(int* count) {
  static const WeakenedKernel kKernels[] = {
      {"mailbox loads weak", Kernel<WeakPoll>()},
      {"mailbox stores weak", Kernel<WeakPush>()},
      {"mailbox accesses at device scope", Kernel<DeviceScopePackets>()},
      {"header accesses weak", Kernel<WeakHeader>()},
      {"ticket relaxed", Kernel<RelaxedTicket>()},
      {"no fence before the epoch is advanced", Kernel<NoHandOverFence>()},
  };
  *count = static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]));
  return kKernels;
}

}  // namespace stoker::testing
