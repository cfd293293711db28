// The state of a cache slot in one 64-bit word, changed by compare-and-swap only:
//
//   EMPTY -> LOADING(generation, leases, in flight, left) -> READY(generation, leases) -> EMPTY
//            LOADING -> DRAINING(failed) -> EMPTY
//
// A slot becomes EMPTY only at zero leases and zero reads in flight: no read can land in a slot
// that has a new owner, and no tile can read one. A cancellation (possible only at zero leases) and
// a join change the same word, so both cannot win. The generation grows with every load; a lease of
// an older one is refused. Thread-safe. Every exchange is acquire-release: what a reader wrote
// before ReadDone is seen by who finds READY, and a tile's loads precede the reuse that Drop
// allows.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace stoker::offload {

enum class SlotState : uint8_t { kEmpty, kLoading, kReady, kDraining };

struct SlotFields {
  SlotState state = SlotState::kEmpty;
  uint32_t leases = 0;      // 14 bits
  uint32_t in_flight = 0;   // 12 bits: reads that are queued or running
  uint32_t left = 0;        // 12 bits: reads that have not succeeded yet
  uint32_t generation = 0;  // 24 bits, wraps
  bool operator==(const SlotFields&) const = default;
};

class SlotWord {
 public:
  static constexpr uint32_t kMaxLeases = (1u << 14) - 1;
  static constexpr uint32_t kMaxReads = (1u << 12) - 1;

  SlotFields Load() const;

  // EMPTY -> LOADING with one lease and `reads` reads in flight; the new generation, or nothing if
  // the slot is not empty. reads in 1..kMaxReads.
  std::optional<uint32_t> BeginLoad(uint32_t reads);
  // One lease more, in LOADING or READY of that generation; false otherwise or at kMaxLeases.
  bool Join(uint32_t generation);
  // Ends one read. The last successful one makes LOADING into READY, a failed one makes it
  // DRAINING.
  SlotFields ReadDone(bool succeeded);
  // Ends one lease; DRAINING becomes EMPTY when nothing is left.
  SlotFields Drop();
  // LOADING -> DRAINING at zero leases; false otherwise.
  bool Cancel();
  // READY -> EMPTY at zero leases; false otherwise.
  bool Evict();

 private:
  // Replaces the fields by what `change` makes of them; false if it declines.
  template <class Change>
  bool Exchange(Change change, SlotFields* after = nullptr);

  std::atomic<uint64_t> word_{0};
};

}  // namespace stoker::offload
