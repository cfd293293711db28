// The Environment (comm/environment.h) on an NVIDIA GPU.
//
// Below sm_90 there are neither clusters nor programmatic launch: a CTA is its own cluster and the
// dependency calls are empty. What nvcc makes of this is read by a test (moe/ptx_audit.py).
#pragma once

#include <cstdint>

#include "comm/environment.h"
#include "comm/protocol.h"

namespace stoker::comm {

class CudaEnvironment {
 public:
  // About a millisecond of polling: soon enough for a deadline, too rare to be seen in a launch
  // that works.
  static constexpr int kPollsPerLook = 1024;

  __device__ __forceinline__ int thread() const { return threadIdx.x; }
  __device__ __forceinline__ int lane() const { return threadIdx.x & 31; }
  __device__ __forceinline__ int warp() const { return threadIdx.x >> 5; }
  __device__ __forceinline__ int threads() const { return blockDim.x; }
  __device__ __forceinline__ int cta() const { return blockIdx.x; }
  __device__ __forceinline__ int ctas() const { return gridDim.x; }

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __device__ __forceinline__ int cluster_rank() const { return Special<kClusterRank>(); }
  __device__ __forceinline__ int cluster_size() const { return Special<kClusterSize>(); }
  __device__ __forceinline__ int cluster() const { return Special<kClusterIndex>(); }
  __device__ __forceinline__ int clusters() const { return Special<kClusterCount>(); }
  __device__ __forceinline__ void GridDependencyWait() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
  }
  __device__ __forceinline__ void LaunchDependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  }
  // Relaxed: all that must be visible afterwards are the barriers of InitPartials, and those have a
  // fence of their own. A release would first wait for every store that the CTA has under way.
  __device__ __forceinline__ void ClusterArrive() {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  }
  __device__ __forceinline__ void ClusterWait() {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
  }
  // A partial is sent by an asynchronous store that counts its bytes on a barrier beside it when it
  // has arrived (PTX ISA, st.async and mbarrier), so that nobody waits for other stores: a cluster
  // barrier with release semantics would wait for those to the peers and the outputs.
  __device__ __forceinline__ void InitPartials() {
    for (int slot = 0; slot < 2; ++slot) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(Address(Barriers() + slot))
                   : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __device__ __forceinline__ void ExpectPartials(int slot, int count) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(Address(Barriers() + slot)),
        "r"(count * static_cast<int>(sizeof(float)))
        : "memory");
  }
  __device__ __forceinline__ void SendPartial(int slot, int index, int cta, float value) {
    asm volatile(
        "{\n\t.reg .u32 place, barrier;\n\t"
        "mapa.shared::cluster.u32 place, %0, %2;\n\t"
        "mapa.shared::cluster.u32 barrier, %1, %2;\n\t"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [place], %3, [barrier];\n\t"
        "}" ::"r"(Address(Partials(slot) + index)),
        "r"(Address(Barriers() + slot)), "r"(cta), "r"(__float_as_uint(value))
        : "memory");
  }
  __device__ __forceinline__ void AwaitPartials(int slot, int phase) {
    asm volatile(
        "{\n\t.reg .pred complete;\n\t"
        "again:\n\t"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 complete, [%0], %1;\n\t"
        "@!complete bra again;\n\t}" ::"r"(Address(Barriers() + slot)),
        "r"(phase)
        : "memory");
  }
#else
  __device__ __forceinline__ int cluster_rank() const { return 0; }
  __device__ __forceinline__ int cluster_size() const { return 1; }
  __device__ __forceinline__ int cluster() const { return blockIdx.x; }
  __device__ __forceinline__ int clusters() const { return gridDim.x; }
  __device__ __forceinline__ void GridDependencyWait() {}
  __device__ __forceinline__ void LaunchDependents() {}
  __device__ __forceinline__ void ClusterArrive() {}
  __device__ __forceinline__ void ClusterWait() { SyncBlock(); }
  __device__ __forceinline__ void InitPartials() {}
  __device__ __forceinline__ void ExpectPartials(int, int) {}
  __device__ __forceinline__ void SendPartial(int, int, int, float) {}
  __device__ __forceinline__ void AwaitPartials(int, int) {}
#endif

  // Not __syncthreads: row warps and the service warp meet from different places in the code. Not
  // .aligned, here and above: a warp need not have reconverged after polling.
  __device__ __forceinline__ void SyncBlock() {
    asm volatile("barrier.cta.sync 1, %0;" ::"r"(blockDim.x) : "memory");
  }
  __device__ __forceinline__ void SyncRows(int threads) {
    asm volatile("barrier.cta.sync 2, %0;" ::"r"(threads) : "memory");
  }
  __device__ __forceinline__ void ArriveRows() {
    asm volatile("barrier.cta.arrive 3, %0;" ::"r"(blockDim.x) : "memory");
  }
  __device__ __forceinline__ void AwaitRows() {
    asm volatile("barrier.cta.sync 3, %0;" ::"r"(blockDim.x) : "memory");
  }
  __device__ __forceinline__ uint32_t Shuffle(uint32_t value, int lane) {
    return __shfl_sync(0xFFFFFFFFu, value, lane);
  }
  __device__ __forceinline__ float ShuffleXor(float value, int mask) {
    return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
  }
  __device__ __forceinline__ bool Any(bool predicate) { return __any_sync(0xFFFFFFFFu, predicate); }

  __device__ __forceinline__ Packet LoadInput(const Packet* p) {
    Packet v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(p));
    return v;
  }
  __device__ __forceinline__ Packet LoadStreamed(const Packet* p) {
    Packet v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(p));
    return v;
  }
  __device__ __forceinline__ uint32_t LoadInput32(const void* p) {
    uint32_t v;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
  }
  __device__ __forceinline__ uint16_t LoadInput16(const void* p) {
    uint16_t v;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
  }
  __device__ __forceinline__ void StoreOutput(Packet* p, const Packet& v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.word[0]),
                 "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3])
                 : "memory");
  }
  __device__ __forceinline__ Packet LoadPacket(const Packet* p) {
    Packet v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(p)
                 : "memory");
    return v;
  }
  __device__ __forceinline__ void StorePacket(Packet* p, const Packet& v) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.word[0]),
                 "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3])
                 : "memory");
  }
  __device__ __forceinline__ uint64_t LoadHeader(const uint64_t* p) { return LoadWord64(p); }
  __device__ __forceinline__ void StoreHeader(uint64_t* p, uint64_t v) { StoreWord64(p, v); }
  __device__ __forceinline__ uint32_t LoadWord(const uint32_t* p) {
    uint32_t v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
  }
  __device__ __forceinline__ void StoreWord(uint32_t* p, uint32_t v) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
  }
  __device__ __forceinline__ uint64_t LoadWord64(const uint64_t* p) {
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
  }
  __device__ __forceinline__ void StoreWord64(uint64_t* p, uint64_t v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
  }
  __device__ __forceinline__ uint32_t AtomicAdd(uint32_t* p, uint32_t v) {
    uint32_t old;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(p), "r"(v)
                 : "memory");
    return old;
  }
  __device__ __forceinline__ void CountUp(uint32_t* p) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
  }
  __device__ __forceinline__ uint32_t AtomicAddRelease(uint32_t* p, uint32_t v) {
    uint32_t old;
    asm volatile("atom.release.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(p), "r"(v)
                 : "memory");
    return old;
  }
  __device__ __forceinline__ uint32_t CompareAndSwap(uint32_t* p, uint32_t expected,
                                                     uint32_t desired) {
    uint32_t old;
    asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(old)
                 : "l"(p), "r"(expected), "r"(desired)
                 : "memory");
    return old;
  }
  __device__ __forceinline__ uint64_t CompareAndSwap64(uint64_t* p, uint64_t expected,
                                                       uint64_t desired) {
    uint64_t old;
    asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(p), "l"(expected), "l"(desired)
                 : "memory");
    return old;
  }
  __device__ __forceinline__ void FenceDevice() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
  __device__ __forceinline__ void FenceSystem() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

  __device__ __forceinline__ void ClearTrouble() { *TroubleFlag() = 0u; }
  __device__ __forceinline__ void RaiseTrouble() { *TroubleFlag() = 1u; }
  __device__ __forceinline__ bool Trouble() { return *TroubleFlag() != 0u; }
  __device__ __forceinline__ float LoadPartial(int slot, int index) {
    return *static_cast<const volatile float*>(Partials(slot) + index);
  }
  __device__ __forceinline__ void StorePartial(int slot, int index, float value) {
    *static_cast<volatile float*>(Partials(slot) + index) = value;
  }

  __device__ __forceinline__ static float Fma(float a, float b, float c) {
    return __fmaf_rn(a, b, c);
  }
  __device__ __forceinline__ static float Add(float a, float b) { return __fadd_rn(a, b); }
  __device__ __forceinline__ static float AddRanks(float a, float b) { return __fadd_rn(a, b); }
  __device__ __forceinline__ static float SquareRoot(float x) { return __fsqrt_rn(x); }
  __device__ __forceinline__ static float Reciprocal(float x) { return __frcp_rn(x); }

  __device__ __forceinline__ static int64_t Fresh(int64_t value) {
    asm volatile("" : "+l"(value));
    return value;
  }

  __device__ __forceinline__ uint64_t Clock() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
  }
  __device__ __forceinline__ void Await() {}

 private:
  __device__ __forceinline__ static uint32_t Address(const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  }
  __device__ __forceinline__ static float* Partials(int slot) {
    __shared__ float partials[2 * kPartialsMax];
    return partials + slot * kPartialsMax;
  }
  __device__ __forceinline__ static uint64_t* Barriers() {
    __shared__ uint64_t barriers[2];
    return barriers;
  }
  __device__ __forceinline__ volatile uint32_t* TroubleFlag() {
    __shared__ uint32_t trouble;
    return &trouble;
  }
  enum Register { kClusterRank, kClusterSize, kClusterIndex, kClusterCount };
  template <Register kWhich>
  __device__ __forceinline__ static int Special() {
    uint32_t v;
    if constexpr (kWhich == kClusterRank) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(v));
    if constexpr (kWhich == kClusterSize) asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(v));
    if constexpr (kWhich == kClusterIndex) asm("mov.u32 %0, %%clusterid.x;" : "=r"(v));
    if constexpr (kWhich == kClusterCount) asm("mov.u32 %0, %%nclusterid.x;" : "=r"(v));
    return static_cast<int>(v);
  }
};

}  // namespace stoker::comm
