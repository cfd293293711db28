// What a layer call runs next: events in, commands out, no threads, no clock, no bytes.
//
//   CallState state(Scheduler::kDynamic, tasks);   // a task is an expert of the call
//   state.ChunkArrived(task, chunk);  while (auto tile = state.Next()) { ...;
//   state.TileDone(*tile); }
//
// A tile of FC1 is runnable when the chunks over its rows are there, a tile of FC2 when its own are
// and every FC1 tile of its expert is done: counters only. Not thread-safe; its owner serialises.
// After Fail(task) no further tile is handed out; finished() then waits only for the tiles that
// run. The other schedulers are baselines that are measured against kDynamic in the same harness:
// there an expert is ready as a whole and tiles are handed out in a fixed order, waiting at its
// head.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace stoker::offload {

enum class Scheduler { kDynamic, kIndexOrder, kReadyFirstOnce, kLoadAllThenCompute };

struct Tile {
  int task = 0;
  int phase = 1;  // 1 = FC1, 2 = FC2
  int index = 0;
  bool operator==(const Tile&) const = default;
};

// Which tiles wait for which chunk; without chunks all is there. Indices of tiles count FC1 first,
// then FC2.
struct TaskPlan {
  int fc1_tiles = 0;
  int fc2_tiles = 0;
  std::vector<std::vector<int>> tiles_of_chunk;
};

struct Task {
  TaskPlan plan;
  std::vector<bool> chunk_ready;  // at the start; all true for a hit
};

class CallState {
 public:
  CallState(Scheduler scheduler, std::vector<Task> tasks);

  void ChunkArrived(int task, int chunk);
  std::optional<Tile> Next();
  // What became of the task with this tile.
  enum class Progress { kNone, kFc1Done, kTaskDone };
  // FC2 tiles of the task are handed out only after StartFc2, so that the caller can prepare their
  // input between.
  Progress TileDone(const Tile& tile);
  void StartFc2(int task);
  void Fail();

  bool failed() const { return failed_; }
  // All tiles done, or failed and none running.
  bool finished() const { return running_ == 0 && (failed_ || tasks_left_ == 0); }

 private:
  struct TaskState {
    TaskPlan plan;
    std::vector<bool> arrived;
    std::vector<int> missing;  // by tile: chunks that are not there
    int chunks_left = 0;
    int fc1_left = 0;
    int fc2_left = 0;
    bool fc2_started = false;
  };
  bool Runnable(const Tile& tile) const;
  void Release(int task, int tile);
  void BuildOrder(const std::vector<bool>& ready_at_start);

  const Scheduler scheduler_;
  std::vector<TaskState> tasks_;
  std::deque<Tile> ready_;   // kDynamic
  std::vector<Tile> order_;  // baselines
  size_t cursor_ = 0;
  int tasks_left_ = 0;
  int tasks_loading_ = 0;
  int running_ = 0;
  bool failed_ = false;
};

}  // namespace stoker::offload
