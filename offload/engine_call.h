// What the engine holds while a layer call runs and while slots are loaded. Internal to
// offload/engine*.cc.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "offload/engine.h"

namespace stoker::offload {

// The page-aligned memory of all slots.
class Engine::Arena {
 public:
  // Null when the system does not give the memory.
  static std::unique_ptr<Arena> Make(uint64_t bytes);
  ~Arena();
  char* data() const { return data_; }

 private:
  Arena(char* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  char* const data_;
  const uint64_t bytes_;
};

// Grows only; starts at a multiple of 64, which kernels like.
class AlignedBytes {
 public:
  void Resize(size_t bytes) {
    if (storage_.size() < bytes + 63) storage_.resize(bytes + 63);
  }
  char* data() {
    const uintptr_t address = reinterpret_cast<uintptr_t>(storage_.data());
    return storage_.data() + (64 - address % 64) % 64;
  }

 private:
  std::vector<char> storage_;
};

// An expert of the call and the routes that want it.
struct Engine::Work {
  int expert = 0;
  std::vector<int> routes;  // token * top_k + k, counted from the first token of the part
  size_t first_row = 0;     // of its rows in the buffers
  bool done = false;
  std::optional<Lease> lease;
};

// The load of a slot; of the last one when the slot is ready.
struct Engine::SlotLoad {
  int layer = 0;
  int expert = 0;
  std::vector<Read> reads;
  std::vector<bool> arrived;
  bool prefetch = false;  // nobody has waited for it
  int task = -1;          // of the active call that waits for it
};

struct Engine::QueuedRead {
  int slot = 0;
  int chunk = 0;
  bool prefetch = false;
  int layer = 0;
  int expert = 0;
  Read read;
  absl::Duration started;
};

// A part of a call. Owns all that threads touch, so that a caller that leaves frees nothing.
struct Engine::Call {
  int layer = 0;
  int tokens = 0;
  int top_k = 1;
  std::vector<Work> work;           // ascending expert id
  AlignedBytes prepared;            // activations: one row a route, or one for a single token
  std::vector<float> intermediate;  // one row a route
  AlignedBytes prepared_fc2;        // one row a route
  std::vector<float> rows;          // one row a route
  size_t prepared_bytes = 0;
  size_t prepared_fc2_bytes = 0;

  // The group that runs: the experts that have a slot.
  std::vector<int> group;  // task -> index of work
  std::vector<Task> tasks;
  std::unique_ptr<CallState> state;
  int reads_left = 0;
  bool group_ended = false;
  absl::Status status;
};

}  // namespace stoker::offload
