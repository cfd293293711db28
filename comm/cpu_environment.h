// The memory, clock and waiting of an Environment (comm/environment.h) on CPU ranks that share
// memory. It has neither warps nor CTAs: comm/cpu_exchange.cc is its own body, and shares the
// headers and the failure path with the GPU.
//
// Stores are release and loads acquire where the GPU's are relaxed: a word that is seen is seen
// with all that was written before it.
#pragma once

#include <sched.h>

#include <cstdint>
#include <ctime>

#include "comm/protocol.h"

namespace stoker::comm {

class CpuEnvironment {
 public:
  static constexpr int kPollsPerLook = 256;

  // The peer that a header function works on: on a GPU each lane has its own.
  int lane() const { return 0; }

  Packet LoadPacket(const Packet* p) {
    Packet packet;
    for (int w = 0; w < kPacketWords; ++w) packet.word[w] = LoadWord(&p->word[w]);
    return packet;
  }
  void StorePacket(Packet* p, const Packet& packet) {
    for (int w = 0; w < kPacketWords; ++w) StoreWord(&p->word[w], packet.word[w]);
  }
  uint64_t LoadHeader(const uint64_t* p) { return LoadWord64(p); }
  void StoreHeader(uint64_t* p, uint64_t v) { StoreWord64(p, v); }
  uint32_t LoadWord(const uint32_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
  void StoreWord(uint32_t* p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
  uint64_t LoadWord64(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
  void StoreWord64(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
  uint32_t AtomicAdd(uint32_t* p, uint32_t v) { return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }
  uint32_t CompareAndSwap(uint32_t* p, uint32_t expected, uint32_t desired) {
    __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return expected;
  }
  uint64_t CompareAndSwap64(uint64_t* p, uint64_t expected, uint64_t desired) {
    __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return expected;
  }
  void FenceSystem() {
#ifdef __SANITIZE_THREAD__
    // ThreadSanitizer has no fences. A read-modify-write of one word that all threads share orders
    // no less; what it might hide is a fence that is needed between threads and missing.
    static uint32_t fence = 0;
    AtomicAdd(&fence, 1);
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
  }
  uint64_t Clock() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
  }
  // More ranks than cores: whoever waits lets the others run.
  void Await() {
    if (++polls_ % 32 == 0) sched_yield();
  }

 private:
  unsigned polls_ = 0;
};

}  // namespace stoker::comm
