// Which expert lies in which slot, and who has to go: the slots of one arena, a fixed share a layer
// and two scratch slots for a call that needs more.
//
//   cache.BeginStep(layer);
//   for (e : experts) leases[e] = cache.Join(layer, e);             // all of a call first
//   for (e : not joined) leases[e] = cache.BeginLoad(layer, e, reads);  // nothing: no victim
//   ... cache.ReadDone(slot, ok) for every read; cache.Drop(lease) for every lease
//
// "No victim" is an outcome, not an error. Slots are not moved or resized. One thread at a time
// changes the map (the engine holds its lock); the slot words themselves are lock-free.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "offload/cache/policy.h"
#include "offload/cache/slot_word.h"

namespace stoker::offload {

// A hold on a slot. Whoever has one gives it back with Drop exactly once.
struct Lease {
  int slot = 0;
  uint32_t generation = 0;
};

class ExpertCache {
 public:
  static constexpr int kScratchSlots = 2;

  // slots > kScratchSlots.
  ExpertCache(int layers, int experts, int slots, PolicyKind policy);

  void BeginStep(int layer) { ++layers_[layer].step; }
  // A lease of an expert that is resident or on its way, and counts its use.
  std::optional<Lease> Join(int layer, int expert);
  // A slot for an expert that is not: empty, or its coldest one evicted, or a scratch slot.
  std::optional<Lease> BeginLoad(int layer, int expert, uint32_t reads);
  // The same for an expert that nobody waits for: without a lease, only an empty slot of the layer
  // or one of at least two that could be evicted, so that a demand always finds the other.
  std::optional<int> BeginPrefetch(int layer, int expert, uint32_t reads);
  // Gives up a load that nobody holds; its reads still end with ReadDone. False if somebody does.
  bool Cancel(int slot);
  bool Holds(int layer, int expert) const { return layers_[layer].slot_of[expert] >= 0; }
  SlotFields fields(int slot) const { return slots_[slot].word.Load(); }
  // The share of a layer.
  int slots(int layer) const { return layers_[layer].slots; }
  // False if the slot has since been loaded anew.
  bool Valid(const Lease& lease) const;
  SlotFields ReadDone(int slot, bool succeeded);
  void Drop(const Lease& lease);

  // Leases and reads that nobody has ended: 0 when no call runs.
  uint64_t outstanding() const;
  int64_t evictions() const { return evictions_; }

 private:
  struct Slot {
    SlotWord word;
    int layer = -1;
    int expert = -1;
  };
  struct Layer {
    Layer(int experts, PolicyKind policy) : slot_of(experts, -1), use(experts, policy) {}
    std::vector<int> slot_of;
    Popularity use;
    int first = 0;  // its slots: [first, first + slots)
    int slots = 0;
    int64_t step = 0;
  };
  bool scratch(int slot) const { return slot >= first_scratch_; }
  std::optional<int> FreeSlot(Layer* layer, size_t victims_needed);
  std::optional<int> FreeScratch() const;
  std::optional<uint32_t> Begin(int slot, int layer, int expert, uint32_t reads);
  void Forget(int slot);

  std::vector<Layer> layers_;
  std::deque<Slot> slots_;  // never moves: SlotWord is atomic
  int first_scratch_ = 0;
  int64_t evictions_ = 0;
};

}  // namespace stoker::offload
