// Loads of slots: a queue for what a call waits for, one behind it for prefetches, and the lanes
// that empty both.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "offload/engine_call.h"

namespace stoker::offload {
LoadPlan Engine::PlanOf(int layer, int expert) const {
  return MakeLoadPlan(checkpoint_->shape(), checkpoint_->extents(layer, expert), layout_,
                      options_.chunk_bytes);
}

void Engine::StartLoad(int slot, int layer, int expert, std::vector<Read> reads, bool prefetch) {
  SlotLoad& load = loads_[slot];
  load = {layer, expert, std::move(reads), {}, prefetch, -1};
  load.arrived.assign(load.reads.size(), false);
  ++loads_running_;
  std::deque<QueuedRead>& queue = prefetch ? prefetch_ : demand_;
  for (size_t c = 0; c < load.reads.size(); ++c) {
    queue.push_back({slot, static_cast<int>(c), prefetch, layer, expert, load.reads[c], {}});
  }
}

// A call waits for what was a prefetch: its queued chunks go to the demands.
void Engine::Promote(int slot) {
  if (!loads_[slot].prefetch) return;
  loads_[slot].prefetch = false;
  for (auto it = prefetch_.begin(); it != prefetch_.end();) {
    if (it->slot != slot) {
      ++it;
      continue;
    }
    it->prefetch = false;
    demand_.push_back(*it);
    it = prefetch_.erase(it);
  }
}

// Forgets the reads of a slot that no lane has taken; its load has failed or was cancelled.
void Engine::DropQueued(int slot) {
  for (std::deque<QueuedRead>* queue : {&demand_, &prefetch_}) {
    for (auto it = queue->begin(); it != queue->end();) {
      if (it->slot != slot) {
        ++it;
        continue;
      }
      if (cache_.ReadDone(slot, false).in_flight == 0) --loads_running_;
      if (loads_[slot].task >= 0 && active_ != nullptr) --active_->reads_left;
      it = queue->erase(it);
    }
  }
}

// Demands first. A prefetch leaves one lane, and a quarter of the queue, to them.
bool Engine::TakeReads(ReadLane* lane, size_t in_flight, std::vector<QueuedRead>* taken) {
  const size_t capacity = static_cast<size_t>(lane->capacity());
  const size_t all = capacity * lanes_.size();
  const size_t kept = std::max(all / 4, lanes_.size() == 1 ? 0 : capacity);
  const size_t for_prefetch = std::max<size_t>(1, all - kept);
  while (in_flight + taken->size() < capacity) {
    if (!demand_.empty()) {
      taken->push_back(demand_.front());
      demand_.pop_front();
    } else if (!prefetch_.empty() && static_cast<size_t>(prefetches_running_) < for_prefetch) {
      taken->push_back(prefetch_.front());
      prefetch_.pop_front();
      ++prefetches_running_;
    } else {
      break;
    }
  }
  return !taken->empty();
}

void Engine::ReadChunks(ReadLane* lane, int number) {
  std::map<uint64_t, QueuedRead> in_flight;
  uint64_t next_tag = 0;
  std::vector<QueuedRead> taken;
  std::vector<ReadOutcome> done;
  while (true) {
    {
      Lock lock(mutex_);
      taken.clear();
      TakeReads(lane, in_flight.size(), &taken);
      if (stop_ && taken.empty() && in_flight.empty()) return;
    }
    for (QueuedRead& queued : taken) {
      const Read& read = queued.read;
      char* into = arena_->data() + queued.slot * layout_.slot_bytes + read.position;
      queued.started = Clock::Monotonic().Now();
      lane->Start({&checkpoint_->file(read.file), read.offset, absl::MakeSpan(into, read.bytes),
                   next_tag, direct_});
      in_flight.emplace(next_tag++, queued);
    }
    done.clear();
    lane->Wait(&done);
    for (ReadOutcome& outcome : done) {
      const auto found = in_flight.find(outcome.tag);
      const QueuedRead read = found->second;
      in_flight.erase(found);
      if (options_.timeline != nullptr) {
        options_.timeline->Add(absl::StrCat("lane ", number),
                               absl::StrCat("layer ", read.layer, " expert ", read.expert, " ",
                                            PartName(read.read.part)),
                               read.started, Clock::Monotonic().Now());
      }
      absl::Status status = Verify(read, std::move(outcome.status));
      Lock lock(mutex_);
      ChunkDone(read, std::move(status));
    }
  }
}

absl::Status Engine::Verify(const QueuedRead& queued, absl::Status status) const {
  const Read& read = queued.read;
  if (status.ok()) status = checkpoint_->CheckFile(read.file);
  if (status.ok() && read.part == kParts) {
    const char* bytes = arena_->data() + queued.slot * layout_.slot_bytes + read.position;
    status = checkpoint_->CheckChunk(queued.layer, queued.expert, queued.chunk,
                                     {bytes, static_cast<size_t>(read.bytes)});
  }
  if (status.ok() && IsScale(read.part) &&
      !FiniteScales({arena_->data() + queued.slot * layout_.slot_bytes + read.position,
                     static_cast<size_t>(read.bytes)},
                    checkpoint_->shape().scale_type)) {
    status = absl::DataLossError(
        absl::StrCat(checkpoint_->file(read.file).path(), ": a scale is not finite"));
  }
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat("layer ", checkpoint_->layers()[queued.layer], ", expert ", queued.expert, ", ",
                   PartName(read.part), " at offset ", read.offset, ": ", status.message()));
}

void Engine::ChunkDone(const QueuedRead& queued, absl::Status status) {
  SlotLoad& load = loads_[queued.slot];
  if (queued.prefetch) --prefetches_running_;
  Call* call = load.task >= 0 ? active_.get() : nullptr;
  if (call != nullptr) --call->reads_left;
  const bool ok = status.ok();
  if (ok) {
    stats_.bytes_read += static_cast<int64_t>(queued.read.bytes);
    load.arrived[queued.chunk] = true;
  }
  if (cache_.ReadDone(queued.slot, ok).in_flight == 0) {
    --loads_running_;
    if (loads_running_ == 0) idle_.notify_all();
  }
  if (!ok) {
    DropQueued(queued.slot);
    if (call != nullptr) {
      FailCall(call, std::move(status));
    } else {
      ++stats_.failed_prefetches;
    }
  } else if (call != nullptr) {
    call->state->ChunkArrived(load.task, queued.chunk);
    EndGroupIfDone();
    Signal(/*all=*/true);
  }
}

void Engine::Prefetch(int layer_index, absl::Span<const int> experts) {
  if (getpid() != owner_ || layer_index < 0 ||
      layer_index >= static_cast<int>(checkpoint_->layers().size())) {
    return;
  }
  {
    Lock lock(mutex_);
    for (const int expert : experts) {
      if (expert < 0 || expert >= checkpoint_->experts() ||
          expert % options_.world_size != options_.rank || cache_.Holds(layer_index, expert)) {
        continue;
      }
      LoadPlan plan = PlanOf(layer_index, expert);
      const auto slot =
          cache_.BeginPrefetch(layer_index, expert, static_cast<uint32_t>(plan.reads.size()));
      if (!slot) return;
      ++stats_.prefetches;
      StartLoad(*slot, layer_index, expert, std::move(plan.reads), /*prefetch=*/true);
    }
  }
  for (const auto& lane : lanes_) lane->Wake();
}

void Engine::CancelPrefetches() {
  Lock lock(mutex_);
  std::vector<int> slots;
  for (const QueuedRead& read : prefetch_) slots.push_back(read.slot);
  for (const int slot : slots) {
    if (cache_.Cancel(slot)) DropQueued(slot);
  }
}

absl::Status Engine::Prewarm(const Trace& trace) {
  const Deadline deadline(Clock::Monotonic(), options_.timeout);
  std::map<int, std::map<int, int>> uses;
  for (const RouteGroup& group : trace.groups) {
    for (const Route& route : group.routes) ++uses[group.layer][route.expert];
  }
  for (const auto& [layer, of_layer] : uses) {
    if (layer >= static_cast<int>(checkpoint_->layers().size())) break;
    std::vector<std::pair<int, int>> ranked;
    for (const auto& [expert, count] : of_layer) {
      if (expert % options_.world_size == options_.rank) ranked.push_back({-count, expert});
    }
    std::sort(ranked.begin(), ranked.end());
    ranked.resize(std::min<size_t>(ranked.size(), cache_.slots(layer)));
    std::vector<int> experts;
    for (const auto& [count, expert] : ranked) experts.push_back(expert);
    Prefetch(layer, experts);
  }
  Lock lock(mutex_);
  while (loads_running_ > 0) {
    if (deadline.Passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("prewarming was not done within ", absl::FormatDuration(options_.timeout)));
    }
    idle_.wait_for(lock, absl::ToChronoMicroseconds(deadline.Left()));
  }
  return absl::OkStatus();
}

}  // namespace stoker::offload
