#include "offload/engine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "offload/engine_call.h"
#include "offload/machine_limits.h"

namespace stoker::offload {
namespace {

constexpr int kMaxTokens = 4096;
constexpr int kMaxTopK = 32;

absl::Status CheckRange(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " = ", value, " is not in [", low, ", ", high, "]"));
}

absl::Status CheckOptions(const EngineOptions& o) {
  STOKER_RETURN_IF_ERROR(CheckRange("compute_threads", o.compute_threads, 1, 256));
  STOKER_RETURN_IF_ERROR(CheckRange("io_threads", o.io_threads, 1, 64));
  STOKER_RETURN_IF_ERROR(CheckRange("queue_depth", o.queue_depth, 1, 1024));
  STOKER_RETURN_IF_ERROR(CheckRange("world_size", o.world_size, 1, 1024));
  STOKER_RETURN_IF_ERROR(CheckRange("rank", o.rank, 0, o.world_size - 1));
  STOKER_RETURN_IF_ERROR(
      CheckRange("chunk_bytes", static_cast<int64_t>(o.chunk_bytes), kPage, int64_t{1} << 30));
  if (o.chunk_bytes % kPage != 0) {
    return absl::InvalidArgumentError("chunk_bytes is not a multiple of 4096");
  }
  STOKER_RETURN_IF_ERROR(CheckRange("record_groups", o.record_groups, 0, 1 << 24));
  if (o.timeout <= absl::ZeroDuration() || o.timeout > absl::Hours(24)) {
    return absl::InvalidArgumentError("timeout is not in (0, 24 h]");
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Engine::Arena> Engine::Arena::Make(uint64_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  // Large pages where there are some, and all of them now, so that no call pays for the first touch
  // of a slot. Both are hints: a system that knows neither gives pages as they are touched.
  madvise(data, bytes, MADV_HUGEPAGE);
  madvise(data, bytes, MADV_POPULATE_WRITE);
  return std::unique_ptr<Arena>(new Arena(static_cast<char*>(data), bytes));
}

Engine::Arena::~Arena() { munmap(data_, bytes_); }

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(std::unique_ptr<Checkpoint> checkpoint,
                                                       const ExpertKernel& kernel,
                                                       EngineOptions options) {
  const MachineLimits limits = ReadMachineLimits();
  if (options.compute_threads == 0) options.compute_threads = std::min(limits.cpus, 256);
  STOKER_RETURN_IF_ERROR(CheckOptions(options));
  if (options.cache_bytes > limits.memory_bytes ||
      options.buffer_bytes > limits.memory_bytes - options.cache_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cache_bytes = ", options.cache_bytes, " and buffer_bytes = ", options.buffer_bytes,
        " exceed the ", limits.memory_bytes, " bytes that this process may use; lower them"));
  }
  const SlotLayout layout(checkpoint->extents(0, 0));
  const uint64_t all = static_cast<uint64_t>(checkpoint->layers().size()) * checkpoint->experts() +
                       ExpertCache::kScratchSlots;
  const uint64_t slots = std::min(options.cache_bytes / layout.slot_bytes, all);
  if (slots <= ExpertCache::kScratchSlots) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cache_bytes = ", options.cache_bytes, " holds ", slots, " slots of ", layout.slot_bytes,
        " bytes; at least ", (ExpertCache::kScratchSlots + 1) * layout.slot_bytes, " are needed"));
  }
  const uint64_t row_bytes = checkpoint->shape().hidden * sizeof(float);
  if (options.buffer_bytes < kMaxTopK * row_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer_bytes = ", options.buffer_bytes, " is below ", kMaxTopK * row_bytes));
  }
  auto arena = Arena::Make(slots * layout.slot_bytes);
  if (arena == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", slots * layout.slot_bytes, " bytes of cache"));
  }
  auto engine = std::unique_ptr<Engine>(new Engine(std::move(checkpoint), kernel, options,
                                                   std::move(arena), static_cast<int>(slots)));
  STOKER_RETURN_IF_ERROR(engine->StartThreads());
  return engine;
}

Engine::Engine(std::unique_ptr<Checkpoint> checkpoint, const ExpertKernel& kernel,
               const EngineOptions& options, std::unique_ptr<Arena> arena, int slots)
    : checkpoint_(std::move(checkpoint)),
      kernel_(kernel),
      options_(options),
      layout_(checkpoint_->extents(0, 0)),
      arena_(std::move(arena)),
      owner_(getpid()),
      cache_(static_cast<int>(checkpoint_->layers().size()), checkpoint_->experts(), slots,
             options.policy) {
  stats_.slots = slots;
  loads_.resize(slots);
  recorded_.layers = static_cast<int>(checkpoint_->layers().size());
  recorded_.experts = checkpoint_->experts();
  recorded_steps_.assign(recorded_.layers, 0);
}

// io_uring where it is wanted and there is one, else a pool of pread threads.
void Engine::MakeLanes() {
  bool descriptors = true;
  bool has_direct = true;
  uint64_t bytes = 0;
  for (int f = 0; f < checkpoint_->files(); ++f) {
    const File& file = checkpoint_->file(f);
    descriptors = descriptors && file.fd() >= 0;
    has_direct = has_direct && file.direct_fd() >= 0;
    if (const auto identity = file.Identity(); identity.ok()) bytes += identity->size;
  }
  const uint64_t memory = ReadMachineLimits().memory_bytes;
  const bool exceeds = bytes > memory - std::min(memory, options_.cache_bytes);
  const bool wanted = options_.io == IoMode::kDirect || (options_.io == IoMode::kAuto && exceeds);
  direct_ = wanted && has_direct;
  if (wanted && !has_direct) {
    std::fprintf(stderr,
                 "stoker: the checkpoint's file system has no direct I/O at 4 KiB; "
                 "reads go through the page cache\n");
  }
  for (int i = 0; direct_ && descriptors && i < options_.io_threads; ++i) {
    auto lane = MakeUringLane(options_.queue_depth);
    if (!lane.ok()) {
      std::fprintf(stderr, "stoker: no io_uring (%s); reading with pread\n",
                   std::string(lane.status().message()).c_str());
      break;
    }
    lanes_.push_back(std::move(*lane));
    lane_kind_ = "io_uring";
  }
  if (lanes_.empty()) {
    for (int i = 0; i < options_.io_threads; ++i) lanes_.push_back(MakePreadLane());
  }
}

absl::Status Engine::StartThreads() {
  const int cpus = ReadMachineLimits().cpus;
  // Who spins with more threads than CPUs keeps the one from running that it waits for.
  spin_pauses_ = options_.compute_threads <= cpus ? 2000 : 0;
  MakeLanes();
  try {
    // The caller is the first that computes.
    for (int i = 1; i < options_.compute_threads; ++i) threads_.emplace_back([this] { Compute(); });
    for (size_t i = 0; i < lanes_.size(); ++i) {
      threads_.emplace_back([this, i] { ReadChunks(lanes_[i].get(), static_cast<int>(i)); });
    }
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start thread ", threads_.size(), ": ", error.what()));
  }
  return absl::OkStatus();
}

Engine::~Engine() {
  {
    Lock lock(mutex_);
    stop_ = true;
    if (active_ != nullptr) FailCall(active_.get(), absl::CancelledError("the engine closes"));
    for (int slot = 0; slot < stats_.slots; ++slot) DropQueued(slot);
    Signal(/*all=*/true);
  }
  for (const auto& lane : lanes_) lane->Wake();
  for (std::thread& thread : threads_) thread.join();
}

EngineStats Engine::stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  EngineStats stats = stats_;
  stats.evictions = cache_.evictions();
  return stats;
}

Trace Engine::RecordedTrace() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return recorded_;
}

void Engine::Record(const Batch& batch) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (int token = 0; token < batch.tokens; ++token) {
    if (static_cast<int64_t>(recorded_.groups.size()) >= options_.record_groups) return;
    RouteGroup group{
        batch.tokens == 1, 0, recorded_steps_[batch.layer_index]++, batch.layer_index, {}};
    for (int k = 0; k < batch.top_k; ++k) {
      const size_t route = static_cast<size_t>(token) * batch.top_k + k;
      const int id = batch.expert_ids[route];
      if (id >= 0 && id < recorded_.experts) group.routes.push_back({id, batch.weights[route]});
    }
    if (!group.routes.empty()) recorded_.groups.push_back(std::move(group));
  }
}

uint64_t Engine::outstanding() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return cache_.outstanding();
}

absl::Status Engine::CheckBatch(const Batch& batch, size_t out_size) const {
  if (getpid() != owner_) {
    return absl::FailedPreconditionError("the engine belongs to the parent of this process");
  }
  STOKER_RETURN_IF_ERROR(CheckRange("layer_index", batch.layer_index, 0,
                                    static_cast<int64_t>(checkpoint_->layers().size()) - 1));
  STOKER_RETURN_IF_ERROR(CheckRange("tokens", batch.tokens, 0, kMaxTokens));
  STOKER_RETURN_IF_ERROR(CheckRange("top_k", batch.top_k, 1, kMaxTopK));
  const size_t need = static_cast<size_t>(batch.tokens) * checkpoint_->shape().hidden;
  if (out_size == need) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("out has ", out_size, " values, needs ", need));
}

absl::Status Engine::Run(const Batch& batch, absl::Span<float> out) {
  STOKER_RETURN_IF_ERROR(CheckBatch(batch, out.size()));
  const Deadline deadline(Clock::Monotonic(), options_.timeout);
  const size_t hidden = checkpoint_->shape().hidden;
  // Tokens do not depend on each other: parts change no bits.
  const int part = static_cast<int>(options_.buffer_bytes / (batch.top_k * hidden * sizeof(float)));
  for (int first = 0; first < batch.tokens; first += part) {
    const int tokens = std::min(part, batch.tokens - first);
    const absl::Status status =
        RunPart(batch, first, tokens, deadline, out.data() + first * hidden);
    if (!status.ok()) {
      std::lock_guard<std::mutex> lock(mutex_);
      ++stats_.failed_calls;
      return status;
    }
  }
  if (options_.record_groups > 0) Record(batch);
  return absl::OkStatus();
}

}  // namespace stoker::offload
