// The Environment (comm/environment.h) on the simulated machine: an empty value that works for the
// running thread. Mutants derive from it and hide single methods.
#pragma once

#include <cmath>
#include <cstdint>

#include "comm/protocol.h"
#include "testing/simt/machine.h"

namespace stoker::testing::simt {

// How often a poll may find nothing before it looks at the clock: not counted, but decided by the
// machine, which lets a thread look when it has waited for long or when an abort word has changed.
struct PollLimit {
  operator int() const { return Running()->look ? 1 : 1 << 30; }
};

class SimtEnvironment {
 public:
  static constexpr PollLimit kPollsPerLook{};

  int thread() const { return Running()->index; }
  int lane() const { return Running()->lane(); }
  int warp() const { return Running()->warp(); }
  int threads() const { return static_cast<int>(Running()->cta->threads.size()); }
  int cta() const { return Running()->cta->index; }
  int ctas() const { return Running()->cta->grid->spec->ctas(); }
  int cluster_rank() const { return cta() % cluster_size(); }
  int cluster_size() const { return Running()->cta->grid->spec->cluster_size; }
  int cluster() const { return Running()->cta->cluster->index; }
  int clusters() const { return Running()->cta->grid->spec->clusters; }
  const comm::ExchangeParams& params() const { return Running()->cta->grid->spec->params; }

  void GridDependencyWait() { TheMachine()->GridWait(); }
  void LaunchDependents() { TheMachine()->LaunchDependents(); }

  void SyncBlock() { TheMachine()->Meet(1, threads(), true, "at the CTA's barrier"); }
  void SyncRows(int count) { TheMachine()->Meet(2, count, true, "at the rows' barrier"); }
  void ArriveRows() { TheMachine()->Meet(3, threads(), false, "arriving"); }
  void AwaitRows() { TheMachine()->Meet(3, threads(), true, "waiting for the rows' arrival"); }
  void ClusterArrive() { TheMachine()->ClusterArrive(); }
  void ClusterWait() { TheMachine()->ClusterWait(); }
  uint32_t Shuffle(uint32_t value, int lane) {
    return TheMachine()->Exchange(value, lane, false, "shuffle");
  }
  float ShuffleXor(float value, int mask) {
    return __builtin_bit_cast(float, TheMachine()->Exchange(__builtin_bit_cast(uint32_t, value),
                                                            lane() ^ mask, false, "shuffle.xor"));
  }
  bool Any(bool predicate) {
    return TheMachine()->Exchange(predicate ? 1u : 0u, 0, true, "vote") != 0u;
  }

  comm::Packet LoadInput(const comm::Packet* p) { return LoadWords(p, true); }
  comm::Packet LoadStreamed(const comm::Packet* p) { return LoadWords(p, true); }
  uint32_t LoadInput32(const void* p) {
    uint32_t value;
    memory().Load(agent(), memory().Word(p), 1, true, &value);
    return value;
  }
  uint16_t LoadInput16(const void* p) {
    const uintptr_t odd_half = reinterpret_cast<uintptr_t>(p) & 2u;
    const uint32_t word = LoadInput32(static_cast<const char*>(p) - odd_half);
    return static_cast<uint16_t>(word >> odd_half * 8u);
  }
  void StoreOutput(comm::Packet* p, const comm::Packet& packet) { StoreWords(p, packet); }
  comm::Packet LoadPacket(const comm::Packet* p) {
    TheMachine()->Point();
    return LoadWords(p, false);
  }
  void StorePacket(comm::Packet* p, const comm::Packet& packet) {
    TheMachine()->Point(comm::kPacketWords);
    StoreWords(p, packet);
  }
  uint64_t LoadHeader(const uint64_t* p) { return LoadWord64(p); }
  void StoreHeader(uint64_t* p, uint64_t v) { StoreWord64(p, v); }
  uint32_t LoadWord(const uint32_t* p) {
    TheMachine()->Point();
    uint32_t value;
    memory().Load(agent(), memory().Word(p), 1, false, &value);
    return value;
  }
  void StoreWord(uint32_t* p, uint32_t v) {
    // The launch's log is read only after a failure.
    const char* ring =
        reinterpret_cast<const char*>(comm::RingOf(params().workspace[params().rank]));
    const int64_t at = reinterpret_cast<const char*>(p) - ring;
    TheMachine()->Point(
        1, at < 0 || at >= int64_t{comm::kLaunchRing} * int64_t{sizeof(comm::LaunchEntry)});
    memory().Store(agent(), memory().Word(p), 1, &v);
  }
  uint64_t LoadWord64(const uint64_t* p) {
    TheMachine()->Point();
    uint32_t values[2];
    memory().Load(agent(), memory().Word(p), 2, false, values);
    return values[0] | static_cast<uint64_t>(values[1]) << 32;
  }
  void StoreWord64(uint64_t* p, uint64_t v) {
    TheMachine()->Point(1);
    const uint32_t values[2] = {static_cast<uint32_t>(v), static_cast<uint32_t>(v >> 32)};
    memory().Store(agent(), memory().Word(p), 2, values);
  }
  uint32_t AtomicAdd(uint32_t* p, uint32_t v) {
    TheMachine()->Point();
    return static_cast<uint32_t>(memory().Update(agent(), memory().Word(p), 1, [v](uint64_t& word) {
      word = static_cast<uint32_t>(word + v);
      return true;
    }));
  }
  void CountUp(uint32_t* p) { AtomicAdd(p, 1u); }
  uint32_t AtomicAddRelease(uint32_t* p, uint32_t v) {
    TheMachine()->Point();
    memory().Fence(agent());
    return AtomicAdd(p, v);
  }
  uint32_t CompareAndSwap(uint32_t* p, uint32_t expected, uint32_t desired) {
    return static_cast<uint32_t>(Swap(memory().Word(p), 1, expected, desired));
  }
  uint64_t CompareAndSwap64(uint64_t* p, uint64_t expected, uint64_t desired) {
    return Swap(memory().Word(p), 2, expected, desired);
  }
  void FenceDevice() { memory().Fence(agent()); }
  void FenceSystem() { memory().Fence(agent()); }

  void ClearTrouble() { TheMachine()->Trouble() = false; }
  void RaiseTrouble() { TheMachine()->Trouble() = true; }
  bool Trouble() { return TheMachine()->Trouble(); }
  float LoadPartial(int slot, int i) { return TheMachine()->Partial(slot, i, cluster_rank()); }
  void StorePartial(int slot, int i, float v) {
    TheMachine()->Partial(slot, i, cluster_rank()) = v;
  }
  void InitPartials() { TheMachine()->InitPartials(); }
  void ExpectPartials(int slot, int count) { TheMachine()->ExpectPartials(slot, count); }
  void SendPartial(int slot, int i, int cta, float v) {
    TheMachine()->SendPartial(slot, i, cta, v);
  }
  void AwaitPartials(int slot, int phase) { TheMachine()->AwaitPartials(slot, phase); }

  static float Fma(float a, float b, float c) { return std::fma(a, b, c); }
  static float Add(float a, float b) { return a + b; }
  static float AddRanks(float a, float b) { return a + b; }
  static float SquareRoot(float x) { return std::sqrt(x); }
  static float Reciprocal(float x) { return 1.0f / x; }
  static int64_t Fresh(int64_t value) { return value; }

  // Of the hosts of all ranks, for the n-th time in a reset.
  void MeetHosts(int) { TheMachine()->MeetHosts(); }

  uint64_t Clock() { return TheMachine()->clock_ns() + 1; }
  void Await() { TheMachine()->Await(); }

 protected:
  static Memory& memory() { return TheMachine()->memory(); }
  static Agent& agent() { return Running()->agent; }

 private:
  uint64_t Swap(uint32_t word, int count, uint64_t expected, uint64_t desired) {
    TheMachine()->Point();
    return memory().Update(agent(), word, count, [expected, desired](uint64_t& found) {
      if (found != expected) return false;
      found = desired;
      return true;
    });
  }
  comm::Packet LoadWords(const comm::Packet* p, bool weak) {
    comm::Packet packet;
    const uint32_t word = memory().Word(p);
    for (int w = 0; w < comm::kPacketWords; ++w) {
      memory().Load(agent(), word + static_cast<uint32_t>(w), 1, weak, &packet.word[w]);
    }
    return packet;
  }
  void StoreWords(comm::Packet* p, const comm::Packet& packet) {
    const uint32_t word = memory().Word(p);
    for (int w = 0; w < comm::kPacketWords; ++w) {
      memory().Store(agent(), word + static_cast<uint32_t>(w), 1, &packet.word[w]);
    }
  }
};

}  // namespace stoker::testing::simt
