#include "comm/cuda_environment.cuh"
#include "comm/one_shot.h"
#include "comm/wire_type.h"
#include "moe/kernel_entry.cuh"
#include "testing/gpu/delayed_environment.cuh"
#include "testing/gpu/fault_hooks.h"

namespace stoker::testing {
namespace {

__device__ unsigned long long pause_ns;
__device__ unsigned long long resume_at;  // of the launch that pauses; 0: not begun

class FaultEnvironment : public comm::CudaEnvironment {
 public:
  __device__ explicit FaultEnvironment(const ExchangeParams&) {}

 protected:
  // Until all who pause may go on: the first to come decides when.
  __device__ void Pause() {
    const unsigned long long until = Clock() + pause_ns;
    const unsigned long long found = atomicCAS(&resume_at, 0ull, until);
    const unsigned long long end = found == 0ull ? until : found;
    while (Clock() < end) {
    }
  }
  __device__ static void WaitNs(uint64_t ns) {
    for (const uint64_t end = comm::CudaEnvironment().Clock() + ns;
         comm::CudaEnvironment().Clock() < end;) {
    }
  }
  // Pushed, and not the re-arming of an own one.
  __device__ static bool IsRow(const Packet& v) { return v.word[0] != comm::kSentinel; }
};

class PausesInside : public FaultEnvironment {
 public:
  using FaultEnvironment::FaultEnvironment;
  __device__ void StorePacket(Packet* p, const Packet& v) {
    if (lane() >= 16 && IsRow(v)) Pause();
    CudaEnvironment::StorePacket(p, v);
  }
};

class PausesAtEnd : public FaultEnvironment {
 public:
  using FaultEnvironment::FaultEnvironment;
  __device__ void CountUp(uint32_t* p) {
    Pause();
    CudaEnvironment::CountUp(p);
  }
};

// Every thread of the grid leaves: half of the row threads before their first push, the others
// behind it, the service warps when CTA 0 has sent the headers.
class Dies : public FaultEnvironment {
 public:
  using FaultEnvironment::FaultEnvironment;
  __device__ void StorePacket(Packet* p, const Packet& v) {
    if (lane() >= 16) Exit();
    CudaEnvironment::StorePacket(p, v);
  }
  __device__ void ArriveRows() { Exit(); }
  __device__ void AwaitRows() { Exit(); }

 private:
  __device__ static void Exit() { asm volatile("exit;"); }
};

class Torn : public FaultEnvironment {
 public:
  using FaultEnvironment::FaultEnvironment;
  __device__ void StorePacket(Packet* p, const Packet& v) {
    for (int w = 0; w < comm::kPacketWords; ++w) {
      if (IsRow(v)) WaitNs(2000);
      StoreWord(&p->word[w], v.word[w]);
    }
  }
};

class Delayed : public FaultEnvironment {
 public:
  using FaultEnvironment::FaultEnvironment;
  __device__ void StorePacket(Packet* p, const Packet& v) {
    if (thread() == 3 && IsRow(v)) Pause();
    CudaEnvironment::StorePacket(p, v);
  }
};

class Reordered : public FaultEnvironment {
 public:
  using FaultEnvironment::FaultEnvironment;
  __device__ void StorePacket(Packet* p, const Packet& v) {
    if (IsRow(v)) WaitNs(500u * static_cast<unsigned>(32 - lane()));
    for (int w = comm::kPacketWords - 1; w >= 0; --w) StoreWord(&p->word[w], v.word[w]);
  }
};

template <class Env>
__global__ void __launch_bounds__(moe::kThreadsMax, 1)
    FaultKernelOf(const __grid_constant__ ExchangeParams params,
                  const __grid_constant__ moe::FinalizeParams producer_params,
                  const __grid_constant__ moe::RmsNormParams epilogue_params) {
  moe::FinalizeProducer<comm::Bf16> producer(producer_params);
  moe::RmsNormEpilogue<comm::Bf16, 1> epilogue(epilogue_params);
  comm::RunLaunch<comm::OneShot<comm::Bf16, 4>, 1>(Env(params), params, producer, epilogue);
}

__global__ void Impatient() { comm::CudaEnvironment().LaunchDependents(); }

const void* FaultKernel(FaultHook hook) {
  switch (hook) {
    case FaultHook::kNone:
      return nullptr;
    case FaultHook::kPausesInside:
      return reinterpret_cast<const void*>(FaultKernelOf<PausesInside>);
    case FaultHook::kPausesAtEnd:
      return reinterpret_cast<const void*>(FaultKernelOf<PausesAtEnd>);
    case FaultHook::kDies:
      return reinterpret_cast<const void*>(FaultKernelOf<Dies>);
    case FaultHook::kTorn:
      return reinterpret_cast<const void*>(FaultKernelOf<Torn>);
    case FaultHook::kDelayed:
      return reinterpret_cast<const void*>(FaultKernelOf<Delayed>);
    case FaultHook::kReordered:
      return reinterpret_cast<const void*>(FaultKernelOf<Reordered>);
  }
  return nullptr;
}

cudaError_t SetFaultPause(uint64_t ns) {
  const unsigned long long pause = ns, none = 0;
  const cudaError_t set = cudaMemcpyToSymbol(pause_ns, &pause, sizeof(pause));
  return set != cudaSuccess ? set : cudaMemcpyToSymbol(resume_at, &none, sizeof(none));
}

cudaError_t LaunchImpatient(cudaStream_t stream) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(32);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, Impatient);
}

}  // namespace

const FaultKernels* TestBuildFaultKernels() {
  static constexpr FaultKernels kKernels{FaultKernel, SetFaultPause, LaunchImpatient};
  return &kKernels;
}

}  // namespace stoker::testing
