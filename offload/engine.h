// Runs the experts of a checkpoint that do not fit in memory: bounded cache, loads that overlap
// with computing, the same bits whatever the cache holds.
//
//   STOKER_ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(directory));
//   STOKER_ASSIGN_OR_RETURN(auto engine, Engine::Create(std::move(checkpoint), kernel, options));
//   STOKER_RETURN_IF_ERROR(engine->Run(batch, out));
//
// Owns the threads (computing and reading apart), the arena and the checkpoint; `kernel` outlives
// it. The thread that calls Run computes too. Run is thread-safe: one call at a time, others wait
// until their deadline. The result of a token is the FP32 sum over its experts in ascending expert
// id, equal ids in route order, times the routed scaling factor. A failed call returns a Status
// that names file, layer, expert and offset, leaves `out` unspecified and the engine usable. A
// child of fork() gets FailedPrecondition and must not destroy it: the threads are the parent's. A
// read that the system never returns from delays the destructor.
#pragma once

#include <sys/types.h>

#include <atomic>
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
#include "offload/io/read_lane.h"
#include "offload/store/checkpoint.h"
#include "offload/trace/timeline.h"
#include "offload/trace/trace.h"

namespace stoker::offload {

enum class IoMode {
  kAuto,  // direct where the files hold more than the memory that the cache leaves, else buffered
  kBuffered,  // through the page cache, by pread
  kDirect     // past it, by io_uring where the system has it, else by pread
};

struct EngineOptions {
  uint64_t cache_bytes = 0;  // the arena; at least three slots
  int compute_threads = 0;   // 1 to 256, the caller's included; 0: one a CPU of the process
  int io_threads = 2;        // 1 to 64 lanes
  IoMode io = IoMode::kAuto;
  int queue_depth = 16;              // reads in flight of an io_uring lane, 1 to 1024
  uint64_t chunk_bytes = 512 << 10;  // a multiple of 4 KiB
  // Rows of experts that wait for their turn in the sum; longer calls run in parts.
  uint64_t buffer_bytes = 32 << 20;
  Scheduler scheduler = Scheduler::kDynamic;
  PolicyKind policy = PolicyKind::kDecayedLfu;
  // Rank r of `world_size` owns the experts e with e mod world_size == r.
  int rank = 0;
  int world_size = 1;
  absl::Duration timeout = absl::Seconds(60);  // of a call, its wait for others included
  // The routing of so many tokens at a layer is kept for RecordedTrace; the rest is not.
  int64_t record_groups = 0;
  Timeline* timeline = nullptr;  // gets reads and tiles; outlives the engine
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
  int64_t hits = 0;  // joins of a prefetch that is on its way included
  int64_t misses = 0;
  int64_t evictions = 0;
  int64_t skipped_routes = 0;
  int64_t bytes_read = 0;
  int64_t bytes_computed = 0;  // weights and scales, once a pass
  int64_t failed_calls = 0;
  int64_t prefetches = 0;
  int64_t failed_prefetches = 0;
  absl::Duration stall;  // the caller had no tile to compute
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

  // Starts to load the experts of this rank that are absent, behind all that a call waits for, as
  // far as slots are free or cold. Returns at once; a call that needs one joins it. A failure only
  // leaves the expert absent.
  void Prefetch(int layer_index, absl::Span<const int> experts);
  // Gives up the prefetches that no call has joined.
  void CancelPrefetches();
  // Fills each layer's share with the experts that `trace` asks for most, and waits for them.
  absl::Status Prewarm(const Trace& trace);

  // What successful calls asked for, ids out of range left out. A call of one token is a decode
  // step of its layer; layers are counted, not named.
  Trace RecordedTrace() const;

  EngineStats stats() const;
  // Leases and reads in flight: 0 when no call and no prefetch runs.
  uint64_t outstanding() const;
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  uint64_t slot_bytes() const { return layout_.slot_bytes; }
  // How it reads and computes, for a report.
  const EngineOptions& options() const { return options_; }
  const char* lane_kind() const { return lane_kind_; }

 private:
  struct Call;
  struct Work;
  struct SlotLoad;
  struct QueuedRead;
  class Arena;
  using Lock = std::unique_lock<std::mutex>;

  Engine(std::unique_ptr<Checkpoint> checkpoint, const ExpertKernel& kernel,
         const EngineOptions& options, std::unique_ptr<Arena> arena, int slots);
  absl::Status StartThreads();
  void MakeLanes();
  absl::Status CheckBatch(const Batch& batch, size_t out_size) const;

  // engine_call.cc: a call from its batch to its sum.
  std::shared_ptr<Call> MakeCall(const Batch& batch, int first_token, int tokens);
  void Record(const Batch& batch);
  absl::Status RunPart(const Batch& batch, int first_token, int tokens, const Deadline& deadline,
                       float* out);
  absl::Status WaitIdle(Lock* lock, const Deadline& deadline);
  void StartGroup(Call* call);
  void Bind(Call* call, int work, const Lease& lease, TaskPlan plan);
  bool BindMiss(Call* call, int work);
  void EndGroupIfDone();
  void FailCall(Call* call, absl::Status status);
  void WarnOfASmallCache(const Call& call);
  void Reduce(const Call& call, const Batch& batch, int first_token, float* out) const;

  // engine_compute.cc: tiles.
  void Compute();
  absl::Status Help(Lock* lock, const std::shared_ptr<Call>& call, const Deadline& deadline);
  void RunTile(Lock* lock, const std::shared_ptr<Call>& call, const Tile& tile);
  void ComputeTile(Call& call, const Tile& tile) const;
  void Fc2TileDone(Call* call, const Tile& tile);
  void PrepareFc2(Call& call, int task) const;
  ExpertView View(const Call& call, const Work& work, int tile) const;
  bool WaitForWork(Lock* lock, const Deadline* deadline);
  void Signal(bool all);

  // engine_reads.cc: loads of slots.
  LoadPlan PlanOf(int layer, int expert) const;
  void StartLoad(int slot, int layer, int expert, std::vector<Read> reads, bool prefetch);
  void Promote(int slot);
  void DropQueued(int slot);
  void ReadChunks(ReadLane* lane, int number);
  bool TakeReads(ReadLane* lane, size_t in_flight, std::vector<QueuedRead>* taken);
  absl::Status Verify(const QueuedRead& read, absl::Status status) const;
  void ChunkDone(const QueuedRead& read, absl::Status status);

  const std::unique_ptr<Checkpoint> checkpoint_;
  const ExpertKernel& kernel_;
  const EngineOptions options_;
  const SlotLayout layout_;
  const std::unique_ptr<Arena> arena_;
  const pid_t owner_;
  int spin_pauses_ = 0;
  bool direct_ = false;
  const char* lane_kind_ = "pread";

  mutable std::mutex mutex_;
  // Counts what a waiting thread may want to know of; changed under mutex_, read by who spins.
  std::atomic<uint32_t> signal_{0};
  std::condition_variable signalled_;
  int parked_ = 0;
  std::condition_variable idle_;  // no call is active, or a load ended
  ExpertCache cache_;
  EngineStats stats_;
  Trace recorded_;
  std::vector<int64_t> recorded_steps_;  // by layer
  std::shared_ptr<Call> active_;         // shared: a caller may leave at its deadline
  std::shared_ptr<Call> spare_;          // its buffers are used again
  std::vector<SlotLoad> loads_;          // by slot
  std::deque<QueuedRead> demand_;
  std::deque<QueuedRead> prefetch_;
  int prefetches_running_ = 0;
  int loads_running_ = 0;
  bool warned_small_ = false;
  bool stop_ = false;
  std::vector<std::unique_ptr<ReadLane>> lanes_;
  std::vector<std::thread> threads_;
};

}  // namespace stoker::offload
