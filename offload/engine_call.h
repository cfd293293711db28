// What one layer call of the engine holds while it runs. Internal to offload/engine*.cc.
#pragma once

#include <memory>
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

// An expert of the call and the routes that want it.
struct Engine::Work {
  int expert = 0;
  std::vector<int> routes;  // token * top_k + k, counted from the first token of the part
  size_t first_row = 0;     // of its rows in the buffers
  bool done = false;
  std::optional<Lease> lease;
};

// A read that is queued or runs.
struct Engine::Loading {
  std::shared_ptr<Call> call;
  int task = 0;
  int work = 0;
  int chunk = 0;
  Read read;
  int slot = 0;
};

// A part of a call. Owns all that threads touch, so that a caller that leaves frees nothing.
struct Engine::Call {
  int layer = 0;
  int top_k = 1;
  std::vector<Work> work;           // ascending expert id
  std::vector<char> prepared;       // activations, one row a token
  std::vector<float> intermediate;  // one row a route
  std::vector<char> prepared_fc2;   // one row a route
  std::vector<float> rows;          // one row a route
  size_t prepared_bytes = 0;
  size_t prepared_fc2_bytes = 0;

  // The group that runs: the experts that have a slot.
  std::vector<int> group;  // task -> index of work
  std::vector<Task> tasks;
  std::vector<Loading> reads;
  std::unique_ptr<CallState> state;
  int reads_left = 0;
  bool group_ended = false;
  absl::Status status;
};

}  // namespace stoker::offload
