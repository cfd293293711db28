#include "offload/cache/slot_word.h"

namespace stoker::offload {
namespace {

uint64_t Pack(const SlotFields& f) {
  return static_cast<uint64_t>(f.state) | static_cast<uint64_t>(f.leases) << 2 |
         static_cast<uint64_t>(f.in_flight) << 16 | static_cast<uint64_t>(f.left) << 28 |
         static_cast<uint64_t>(f.generation & 0xffffff) << 40;
}

SlotFields Unpack(uint64_t word) {
  return {static_cast<SlotState>(word & 3), static_cast<uint32_t>(word >> 2 & 0x3fff),
          static_cast<uint32_t>(word >> 16 & 0xfff), static_cast<uint32_t>(word >> 28 & 0xfff),
          static_cast<uint32_t>(word >> 40)};
}

void EmptyIfDrained(SlotFields* f) {
  if (f->state == SlotState::kDraining && f->leases == 0 && f->in_flight == 0) {
    f->state = SlotState::kEmpty;
    f->left = 0;
  }
}

}  // namespace

template <class Change>
bool SlotWord::Exchange(Change change, SlotFields* after) {
  uint64_t old = word_.load(std::memory_order_acquire);
  SlotFields fields;
  do {
    fields = Unpack(old);
    if (!change(&fields)) return false;
  } while (!word_.compare_exchange_weak(old, Pack(fields), std::memory_order_acq_rel,
                                        std::memory_order_acquire));
  if (after != nullptr) *after = fields;
  return true;
}

SlotFields SlotWord::Load() const { return Unpack(word_.load(std::memory_order_acquire)); }

std::optional<uint32_t> SlotWord::BeginLoad(uint32_t reads) {
  SlotFields after;
  const bool begun = Exchange(
      [reads](SlotFields* f) {
        if (f->state != SlotState::kEmpty || reads == 0 || reads > kMaxReads) return false;
        *f = {SlotState::kLoading, 1, reads, reads, (f->generation + 1) & 0xffffff};
        return true;
      },
      &after);
  if (!begun) return std::nullopt;
  return after.generation;
}

bool SlotWord::Join(uint32_t generation) {
  return Exchange([generation](SlotFields* f) {
    if (f->state != SlotState::kLoading && f->state != SlotState::kReady) return false;
    if (f->generation != generation || f->leases == kMaxLeases) return false;
    ++f->leases;
    return true;
  });
}

SlotFields SlotWord::ReadDone(bool succeeded) {
  SlotFields after;
  Exchange(
      [succeeded](SlotFields* f) {
        --f->in_flight;
        if (!succeeded) {
          f->state = SlotState::kDraining;
        } else if (f->state == SlotState::kLoading && --f->left == 0) {
          f->state = SlotState::kReady;
        }
        EmptyIfDrained(f);
        return true;
      },
      &after);
  return after;
}

SlotFields SlotWord::Drop() {
  SlotFields after;
  Exchange(
      [](SlotFields* f) {
        --f->leases;
        EmptyIfDrained(f);
        return true;
      },
      &after);
  return after;
}

bool SlotWord::Cancel() {
  return Exchange([](SlotFields* f) {
    if (f->state != SlotState::kLoading || f->leases != 0) return false;
    f->state = SlotState::kDraining;
    EmptyIfDrained(f);
    return true;
  });
}

bool SlotWord::Evict() {
  return Exchange([](SlotFields* f) {
    if (f->state != SlotState::kReady || f->leases != 0) return false;
    f->state = SlotState::kEmpty;
    return true;
  });
}

}  // namespace stoker::offload
