// Runs the experts of a checkpoint that do not fit in memory: bounded cache, loads that overlap
// with computing, the same bits whatever the cache holds.
//
//   STOKER_ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(directory));
//   STOKER_ASSIGN_OR_RETURN(auto engine, Engine::Create(std::move(checkpoint), kernel, options));
//   STOKER_RETURN_IF_ERROR(engine->Run(batch, out));
//
// Owns the threads (computing and reading apart), the arena and the checkpoint; `kernel` outlives
// it. Run is thread-safe: one call at a time, others wait until their deadline. The result of a
// token is the FP32 sum over its experts in ascending expert id, equal ids in route order, times
// the routed scaling factor. A failed call returns a Status that names file, layer, expert and
// offset, leaves `out` unspecified and the engine usable. A child of fork() gets FailedPrecondition
// and must not destroy it: the threads are the parent's.
// A read that the system never returns from delays the destructor.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "offload/cache/expert_cache.h"
#include "offload/dispatch/expert_kernel.h"
#include "offload/dispatch/load_plan.h"
#include "offload/store/checkpoint.h"

namespace stoker::offload {

struct EngineOptions {
  uint64_t cache_bytes = 0;          // the arena; at least three slots
  int compute_threads = 0;           // 1 to 256; 0: one for each CPU of the process
  int io_threads = 2;                // 1 to 64
  uint64_t chunk_bytes = 512 << 10;  // a multiple of 4 KiB
  // Rows of experts that wait for their turn in the sum; longer calls run in parts.
  uint64_t buffer_bytes = 32 << 20;
  Scheduler scheduler = Scheduler::kDynamic;
  PolicyKind policy = PolicyKind::kDecayedLfu;
  // Rank r of `world_size` owns the experts e with e mod world_size == r.
  int rank = 0;
  int world_size = 1;
  absl::Duration timeout = absl::Seconds(60);  // of a call, its wait for others included
};

struct Batch {
  int layer_index = 0;                  // counts Checkpoint::layers()
  int tokens = 0;                       // 0 to 4096
  int top_k = 0;                        // 1 to 32
  const float* hidden = nullptr;        // [tokens, hidden]
  const int32_t* expert_ids = nullptr;  // [tokens, top_k]; outside [0, experts): skipped, counted
  const float* weights = nullptr;       // [tokens, top_k]
  float routed_scaling_factor = 1.0f;
};

struct EngineStats {
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t evictions = 0;
  int64_t skipped_routes = 0;
  int64_t bytes_read = 0;
  int64_t failed_calls = 0;
  int slots = 0;
};

class Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Create(std::unique_ptr<Checkpoint> checkpoint,
                                                        const ExpertKernel& kernel,
                                                        EngineOptions options);
  ~Engine();

  // Writes out[tokens, hidden]: zeros for a token without experts of this rank.
  absl::Status Run(const Batch& batch, absl::Span<float> out);

  EngineStats stats() const;
  // Leases and reads in flight: 0 when no call runs.
  uint64_t outstanding() const;
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  uint64_t slot_bytes() const { return layout_.slot_bytes; }

 private:
  struct Call;
  struct Work;
  struct Loading;
  class Arena;

  Engine(std::unique_ptr<Checkpoint> checkpoint, const ExpertKernel& kernel,
         const EngineOptions& options, std::unique_ptr<Arena> arena, int slots);
  absl::Status StartThreads();
  absl::Status CheckBatch(const Batch& batch, size_t out_size) const;
  absl::Status RunPart(const Batch& batch, int first_token, int tokens, const Deadline& deadline,
                       float* out);
  absl::Status WaitIdle(std::unique_lock<std::mutex>* lock, const Deadline& deadline);
  void StartGroup(Call* call);
  void Bind(Call* call, int work, const Lease& lease, bool load);
  absl::Status FinishGroup(std::unique_lock<std::mutex>* lock, std::shared_ptr<Call> call,
                           const Deadline& deadline);
  void EndGroupIfDone(Call* call);
  void FailCall(Call* call, absl::Status status);
  void Compute();
  void ComputeTile(Call& call, const Tile& tile) const;
  void Fc2TileDone(Call* call, const Tile& tile);
  void PrepareFc2(Call& call, int task) const;
  void ReadChunks();
  absl::Status ReadChunk(const Loading& loading) const;
  ExpertView View(const Call& call, const Work& work) const;
  void Reduce(const Call& call, const Batch& batch, int first_token, float* out) const;

  const std::unique_ptr<Checkpoint> checkpoint_;
  const ExpertKernel& kernel_;
  const EngineOptions options_;
  const SlotLayout layout_;
  const std::unique_ptr<Arena> arena_;
  const pid_t owner_;

  mutable std::mutex mutex_;
  std::condition_variable work_ready_;  // a tile to compute, or stop
  std::condition_variable read_ready_;  // a chunk to read, or stop
  std::condition_variable group_done_;  // the active group ended
  ExpertCache cache_;
  EngineStats stats_;
  std::shared_ptr<Call> active_;  // shared: a caller may leave at its deadline
  std::deque<Loading> queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace stoker::offload
