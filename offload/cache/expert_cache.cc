#include "offload/cache/expert_cache.h"

namespace stoker::offload {

ExpertCache::ExpertCache(int layers, int experts, int slots, PolicyKind policy) {
  first_scratch_ = slots - kScratchSlots;
  int next = 0;
  for (int l = 0; l < layers; ++l) {
    layers_.emplace_back(experts, policy);
    layers_[l].first = next;
    // Early layers route more evenly and get what the division leaves over.
    layers_[l].slots = first_scratch_ / layers + (l < first_scratch_ % layers ? 1 : 0);
    next += layers_[l].slots;
  }
  for (int s = 0; s < slots; ++s) slots_.emplace_back();
}

std::optional<Lease> ExpertCache::Join(int layer, int expert) {
  Layer& l = layers_[layer];
  const int slot = l.slot_of[expert];
  if (slot < 0) return std::nullopt;
  const uint32_t generation = slots_[slot].word.Load().generation;
  if (!slots_[slot].word.Join(generation)) return std::nullopt;
  l.use.Touch(expert, l.step);
  return Lease{slot, generation};
}

// Empty, or emptied if at least `victims_needed` could be.
std::optional<int> ExpertCache::FreeSlot(Layer* layer, size_t victims_needed) {
  std::vector<int> candidates;
  for (int s = layer->first; s < layer->first + layer->slots; ++s) {
    const SlotFields fields = slots_[s].word.Load();
    if (fields.state == SlotState::kEmpty) return s;
    if (fields.state == SlotState::kReady && fields.leases == 0) {
      candidates.push_back(slots_[s].expert);
    }
  }
  if (candidates.size() < victims_needed) return std::nullopt;
  const int slot = layer->slot_of[layer->use.Coldest(candidates, layer->step)];
  if (!slots_[slot].word.Evict()) return std::nullopt;
  ++evictions_;
  Forget(slot);
  return slot;
}

std::optional<int> ExpertCache::FreeScratch() const {
  for (int s = first_scratch_; s < static_cast<int>(slots_.size()); ++s) {
    if (slots_[s].word.Load().state == SlotState::kEmpty) return s;
  }
  return std::nullopt;
}

std::optional<uint32_t> ExpertCache::Begin(int slot, int layer, int expert, uint32_t reads) {
  const std::optional<uint32_t> generation = slots_[slot].word.BeginLoad(reads);
  if (!generation) return std::nullopt;
  slots_[slot].layer = layer;
  slots_[slot].expert = expert;
  layers_[layer].slot_of[expert] = slot;
  return generation;
}

std::optional<Lease> ExpertCache::BeginLoad(int layer, int expert, uint32_t reads) {
  std::optional<int> slot = FreeSlot(&layers_[layer], 1);
  if (!slot) slot = FreeScratch();
  if (!slot) return std::nullopt;
  const std::optional<uint32_t> generation = Begin(*slot, layer, expert, reads);
  if (!generation) return std::nullopt;
  layers_[layer].use.Touch(expert, layers_[layer].step);
  return Lease{*slot, *generation};
}

std::optional<int> ExpertCache::BeginPrefetch(int layer, int expert, uint32_t reads) {
  if (Holds(layer, expert)) return std::nullopt;
  const std::optional<int> slot = FreeSlot(&layers_[layer], 2);
  if (!slot || !Begin(*slot, layer, expert, reads)) return std::nullopt;
  slots_[*slot].word.Drop();
  return slot;
}

bool ExpertCache::Cancel(int slot) {
  if (!slots_[slot].word.Cancel()) return false;
  if (slots_[slot].word.Load().state == SlotState::kEmpty) Forget(slot);
  return true;
}

void ExpertCache::Forget(int slot) {
  Slot& s = slots_[slot];
  // A new load of the expert may own the entry already while this slot drained.
  if (s.layer >= 0 && layers_[s.layer].slot_of[s.expert] == slot) {
    layers_[s.layer].slot_of[s.expert] = -1;
  }
  s.layer = s.expert = -1;
}

bool ExpertCache::Valid(const Lease& lease) const {
  return slots_[lease.slot].word.Load().generation == lease.generation;
}

SlotFields ExpertCache::ReadDone(int slot, bool succeeded) {
  const SlotFields after = slots_[slot].word.ReadDone(succeeded);
  if (after.state == SlotState::kEmpty) Forget(slot);
  return after;
}

void ExpertCache::Drop(const Lease& lease) {
  const SlotFields after = slots_[lease.slot].word.Drop();
  // A scratch slot keeps nothing: the next call may need it.
  const bool emptied =
      after.state == SlotState::kEmpty || (scratch(lease.slot) && slots_[lease.slot].word.Evict());
  if (emptied) Forget(lease.slot);
}

uint64_t ExpertCache::outstanding() const {
  uint64_t sum = 0;
  for (const Slot& slot : slots_) {
    const SlotFields fields = slot.word.Load();
    sum += fields.leases + fields.in_flight;
  }
  return sum;
}

}  // namespace stoker::offload
