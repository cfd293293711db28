#include "offload/engine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
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
  STOKER_RETURN_IF_ERROR(CheckRange("world_size", o.world_size, 1, 1024));
  STOKER_RETURN_IF_ERROR(CheckRange("rank", o.rank, 0, o.world_size - 1));
  STOKER_RETURN_IF_ERROR(
      CheckRange("chunk_bytes", static_cast<int64_t>(o.chunk_bytes), kPage, int64_t{1} << 30));
  if (o.chunk_bytes % kPage != 0) {
    return absl::InvalidArgumentError("chunk_bytes is not a multiple of 4096");
  }
  if (o.timeout <= absl::ZeroDuration() || o.timeout > absl::Hours(24)) {
    return absl::InvalidArgumentError("timeout is not in (0, 24 h]");
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Engine::Arena> Engine::Arena::Make(uint64_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
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
}

absl::Status Engine::StartThreads() {
  try {
    for (int i = 0; i < options_.compute_threads; ++i) threads_.emplace_back([this] { Compute(); });
    for (int i = 0; i < options_.io_threads; ++i) threads_.emplace_back([this] { ReadChunks(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start thread ", threads_.size(), ": ", error.what()));
  }
  return absl::OkStatus();
}

Engine::~Engine() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    if (active_ != nullptr) FailCall(active_.get(), absl::CancelledError("the engine closes"));
  }
  work_ready_.notify_all();
  read_ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

EngineStats Engine::stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  EngineStats stats = stats_;
  stats.evictions = cache_.evictions();
  return stats;
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
  return absl::OkStatus();
}

absl::Status Engine::WaitIdle(std::unique_lock<std::mutex>* lock, const Deadline& deadline) {
  while (active_ != nullptr) {
    group_done_.wait_for(*lock, absl::ToChronoMicroseconds(deadline.Left()));
    if (active_ != nullptr && deadline.Passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("the engine was busy for ", absl::FormatDuration(deadline.timeout())));
    }
  }
  return absl::OkStatus();
}

absl::Status Engine::RunPart(const Batch& batch, int first_token, int tokens,
                             const Deadline& deadline, float* out) {
  const ExpertShape& shape = checkpoint_->shape();
  auto call = std::make_shared<Call>();
  call->layer = batch.layer_index;
  call->top_k = batch.top_k;
  std::map<int, std::vector<int>> routes;
  int64_t skipped = 0;
  for (int route = 0; route < tokens * batch.top_k; ++route) {
    const int id = batch.expert_ids[static_cast<size_t>(first_token) * batch.top_k + route];
    if (id < 0 || id >= checkpoint_->experts()) {
      ++skipped;
    } else if (id % options_.world_size == options_.rank) {
      routes[id].push_back(route);
    }
  }
  size_t rows = 0;
  for (auto& [expert, of_expert] : routes) {
    call->work.push_back({expert, std::move(of_expert), rows, false, std::nullopt});
    rows += call->work.back().routes.size();
  }
  call->prepared_bytes = kernel_.PreparedBytes(shape.hidden, shape.group);
  call->prepared_fc2_bytes = kernel_.PreparedBytes(shape.intermediate, shape.group);
  call->prepared.resize(call->prepared_bytes * tokens);
  call->intermediate.resize(rows * shape.intermediate);
  call->prepared_fc2.resize(call->prepared_fc2_bytes * rows);
  call->rows.resize(rows * shape.hidden);
  for (int t = 0; t < tokens; ++t) {
    kernel_.Prepare(batch.hidden + static_cast<size_t>(first_token + t) * shape.hidden,
                    shape.hidden, shape.group, call->prepared.data() + t * call->prepared_bytes);
  }
  std::unique_lock<std::mutex> lock(mutex_);
  stats_.skipped_routes += skipped;
  size_t done = 0;
  while (done < call->work.size()) {
    // Another call may have come between two groups of this one.
    STOKER_RETURN_IF_ERROR(WaitIdle(&lock, deadline));
    if (done == 0) cache_.BeginStep(call->layer);
    active_ = call;
    StartGroup(call.get());
    done += call->group.size();
    STOKER_RETURN_IF_ERROR(FinishGroup(&lock, call, deadline));
  }
  lock.unlock();
  Reduce(*call, batch, first_token, out);
  return absl::OkStatus();
}

void Engine::Reduce(const Call& call, const Batch& batch, int first_token, float* out) const {
  const size_t hidden = checkpoint_->shape().hidden;
  size_t tokens = call.prepared_bytes == 0 ? 0 : call.prepared.size() / call.prepared_bytes;
  std::fill(out, out + tokens * hidden, 0.0f);
  for (const Work& work : call.work) {
    for (size_t i = 0; i < work.routes.size(); ++i) {
      const int route = work.routes[i];
      const float weight = batch.weights[static_cast<size_t>(first_token) * batch.top_k + route];
      const float* row = call.rows.data() + (work.first_row + i) * hidden;
      float* sum = out + static_cast<size_t>(route / call.top_k) * hidden;
      for (size_t h = 0; h < hidden; ++h) sum[h] = std::fma(weight, row[h], sum[h]);
    }
  }
  if (batch.routed_scaling_factor == 1.0f) return;
  for (size_t i = 0; i < tokens * hidden; ++i) out[i] *= batch.routed_scaling_factor;
}

}  // namespace stoker::offload
