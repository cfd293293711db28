#include "offload/dispatch/call_state.h"

#include <algorithm>
#include <utility>

namespace stoker::offload {

CallState::CallState(Scheduler scheduler, std::vector<Task> tasks) : scheduler_(scheduler) {
  std::vector<bool> ready_at_start;
  for (Task& task : tasks) {
    TaskState state;
    state.plan = std::move(task.plan);
    state.arrived.assign(state.plan.tiles_of_chunk.size(), false);
    state.chunks_left = static_cast<int>(state.arrived.size());
    state.fc1_left = state.plan.fc1_tiles;
    state.fc2_left = state.plan.fc2_tiles;
    state.missing.assign(state.fc1_left + state.fc2_left, 0);
    for (const std::vector<int>& tiles : state.plan.tiles_of_chunk) {
      for (const int tile : tiles) ++state.missing[tile];
    }
    tasks_.push_back(std::move(state));
    ready_at_start.push_back(
        std::all_of(task.chunk_ready.begin(), task.chunk_ready.end(), [](bool b) { return b; }));
  }
  tasks_left_ = tasks_loading_ = static_cast<int>(tasks_.size());
  // Hits first by construction: what is there at the start queues before what arrives.
  for (size_t t = 0; t < tasks.size(); ++t) {
    if (tasks_[t].chunks_left == 0) {
      --tasks_loading_;
      for (int tile = 0; tile < tasks_[t].plan.fc1_tiles; ++tile)
        Release(static_cast<int>(t), tile);
    }
    for (size_t c = 0; c < tasks[t].chunk_ready.size(); ++c) {
      if (tasks[t].chunk_ready[c]) ChunkArrived(static_cast<int>(t), static_cast<int>(c));
    }
  }
  if (scheduler_ != Scheduler::kDynamic) BuildOrder(ready_at_start);
}

void CallState::BuildOrder(const std::vector<bool>& ready_at_start) {
  std::vector<int> slots(tasks_.size());
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int>(i);
  if (scheduler_ == Scheduler::kReadyFirstOnce) {
    std::stable_partition(slots.begin(), slots.end(), [&](int t) { return ready_at_start[t]; });
  }
  for (const int phase : {1, 2}) {
    for (const int t : slots) {
      const int tiles = phase == 1 ? tasks_[t].plan.fc1_tiles : tasks_[t].plan.fc2_tiles;
      for (int i = 0; i < tiles; ++i) order_.push_back({t, phase, i});
    }
  }
}

void CallState::Release(int task, int tile) {
  if (scheduler_ != Scheduler::kDynamic) return;
  const TaskState& state = tasks_[task];
  const bool fc1 = tile < state.plan.fc1_tiles;
  if (!fc1 && !state.fc2_started) return;
  ready_.push_back({task, fc1 ? 1 : 2, fc1 ? tile : tile - state.plan.fc1_tiles});
}

void CallState::ChunkArrived(int task, int chunk) {
  TaskState& state = tasks_[task];
  // A join may report a chunk that the load reports too.
  if (state.arrived[chunk]) return;
  state.arrived[chunk] = true;
  if (--state.chunks_left == 0) --tasks_loading_;
  for (const int tile : state.plan.tiles_of_chunk[chunk]) {
    if (--state.missing[tile] == 0) Release(task, tile);
  }
}

bool CallState::Runnable(const Tile& tile) const {
  if (scheduler_ == Scheduler::kLoadAllThenCompute && tasks_loading_ > 0) return false;
  const TaskState& state = tasks_[tile.task];
  return state.chunks_left == 0 && (tile.phase == 1 || state.fc2_started);
}

std::optional<Tile> CallState::Next() {
  if (failed_) return std::nullopt;
  Tile tile;
  if (scheduler_ == Scheduler::kDynamic) {
    if (ready_.empty()) return std::nullopt;
    tile = ready_.front();
    ready_.pop_front();
  } else {
    if (cursor_ == order_.size() || !Runnable(order_[cursor_])) return std::nullopt;
    tile = order_[cursor_++];
  }
  ++running_;
  return tile;
}

CallState::Progress CallState::TileDone(const Tile& tile) {
  --running_;
  TaskState& state = tasks_[tile.task];
  if (tile.phase == 1) return --state.fc1_left == 0 ? Progress::kFc1Done : Progress::kNone;
  if (--state.fc2_left > 0) return Progress::kNone;
  --tasks_left_;
  return Progress::kTaskDone;
}

void CallState::StartFc2(int task) {
  TaskState& state = tasks_[task];
  state.fc2_started = true;
  for (int tile = state.plan.fc1_tiles; tile < static_cast<int>(state.missing.size()); ++tile) {
    if (state.missing[tile] == 0) Release(task, tile);
  }
}

void CallState::Fail() {
  failed_ = true;
  ready_.clear();
}

}  // namespace stoker::offload
