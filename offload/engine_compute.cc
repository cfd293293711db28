// Threads that compute, the caller's among them: a tile is taken under the lock and computed
// without it.
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "offload/engine_call.h"

namespace stoker::offload {

void Engine::Signal(bool all) {
  signal_.fetch_add(1, std::memory_order_release);
  if (parked_ == 0) return;
  if (all) {
    signalled_.notify_all();
  } else {
    signalled_.notify_one();
  }
}

// Returns when something was signalled after the caller last looked, or at the deadline (false).
// First spins a bounded number of pauses without the lock, then parks; a signal between the look
// and the wait changes the count and is not lost.
bool Engine::WaitForWork(Lock* lock, const Deadline* deadline) {
  const uint32_t seen = signal_.load(std::memory_order_acquire);
  // While reads run, the lanes need the CPUs.
  if (spin_pauses_ > 0 && loads_running_ == 0) {
    lock->unlock();
    for (int i = 0; i < spin_pauses_ && signal_.load(std::memory_order_acquire) == seen; ++i) {
      _mm_pause();
    }
    lock->lock();
  }
  const auto signalled = [&] { return signal_.load(std::memory_order_acquire) != seen; };
  ++parked_;
  bool in_time = true;
  if (deadline == nullptr) {
    signalled_.wait(*lock, signalled);
  } else {
    in_time = signalled_.wait_for(*lock, absl::ToChronoMicroseconds(deadline->Left()), signalled);
  }
  --parked_;
  return in_time;
}

void Engine::Compute() {
  Lock lock(mutex_);
  while (true) {
    if (active_ != nullptr) {
      if (const auto tile = active_->state->Next()) {
        const std::shared_ptr<Call> call = active_;
        RunTile(&lock, call, *tile);
        continue;
      }
    } else if (stop_) {
      return;
    }
    WaitForWork(&lock, nullptr);
  }
}

// The caller's part of a group: computes until it ended or the deadline passed.
absl::Status Engine::Help(Lock* lock, const std::shared_ptr<Call>& call, const Deadline& deadline) {
  int tiles = 0;
  while (!call->group_ended) {
    if (const auto tile = call->state->Next()) {
      RunTile(lock, call, *tile);
      if (++tiles % 64 != 0 || !deadline.Passed()) continue;
    } else {
      const absl::Duration since = Clock::Monotonic().Now();
      const bool in_time = WaitForWork(lock, &deadline);
      stats_.stall += Clock::Monotonic().Now() - since;
      if (in_time) continue;
    }
    if (call->group_ended) break;
    FailCall(call.get(), absl::DeadlineExceededError(absl::StrCat(
                             "layer ", checkpoint_->layers()[call->layer], " was not done within ",
                             absl::FormatDuration(deadline.timeout()), "; ", call->reads_left,
                             " reads were missing")));
    return call->status;
  }
  return call->status;
}

void Engine::RunTile(Lock* lock, const std::shared_ptr<Call>& call, const Tile& tile) {
  lock->unlock();
  if (options_.timeline == nullptr) {
    ComputeTile(*call, tile);
  } else {
    const absl::Duration begin = Clock::Monotonic().Now();
    ComputeTile(*call, tile);
    const Work& work = call->work[call->group[tile.task]];
    static std::atomic<int> threads{0};
    thread_local const std::string track = absl::StrCat("compute ", threads++);
    options_.timeline->Add(track,
                           absl::StrCat("layer ", call->layer, " expert ", work.expert, " FC",
                                        tile.phase, " tile ", tile.index),
                           begin, Clock::Monotonic().Now());
  }
  lock->lock();
  if (tile.phase == 2) {
    Fc2TileDone(call.get(), tile);
  } else if (call->state->TileDone(tile) == CallState::Progress::kFc1Done) {
    lock->unlock();
    PrepareFc2(*call, tile.task);
    lock->lock();
    call->state->StartFc2(tile.task);
    if (!call->group_ended) Signal(/*all=*/true);
  }
  if (active_ == call) EndGroupIfDone();
}

// `tile` counts those of FC1, then those of FC2.
ExpertView Engine::View(const Call& call, const Work& work, int tile) const {
  ExpertView view{checkpoint_->shape(), {}};
  const char* slot = arena_->data() + work.lease->slot * layout_.slot_bytes;
  const ExpertExtents& extents = checkpoint_->extents(call.layer, work.expert);
  const RecordLayout* record = checkpoint_->record_layout();
  for (int part = 0; part < kParts; ++part) {
    view.parts[part] = record != nullptr ? record->Base(slot, tile, part)
                                         : slot + layout_.Position(part, extents.parts[part]);
  }
  return view;
}

void Engine::ComputeTile(Call& call, const Tile& tile) const {
  const ExpertShape& shape = checkpoint_->shape();
  const Work& work = call.work[call.group[tile.task]];
  const int tokens = static_cast<int>(work.routes.size());
  const size_t row = work.first_row;
  if (tile.phase == 1) {
    const int begin = tile.index * kFc1TileRows;
    // All routes of a single token share its row.
    const size_t stride = call.tokens == 1 ? 0 : call.prepared_bytes;
    kernel_.Fc1(View(call, work, tile.index), {call.prepared.data() + row * stride, stride, tokens},
                begin, std::min(begin + kFc1TileRows, shape.intermediate),
                call.intermediate.data() + row * shape.intermediate, shape.intermediate);
  } else {
    const int begin = tile.index * kFc2TileRows;
    kernel_.Fc2(
        View(call, work, (shape.intermediate + kFc1TileRows - 1) / kFc1TileRows + tile.index),
        {call.prepared_fc2.data() + row * call.prepared_fc2_bytes, call.prepared_fc2_bytes, tokens},
        begin, std::min(begin + kFc2TileRows, shape.hidden), call.rows.data() + row * shape.hidden,
        shape.hidden);
  }
}

void Engine::PrepareFc2(Call& call, int task) const {
  const ExpertShape& shape = checkpoint_->shape();
  const Work& work = call.work[call.group[task]];
  for (size_t i = 0; i < work.routes.size(); ++i) {
    const size_t row = work.first_row + i;
    kernel_.Prepare(call.intermediate.data() + row * shape.intermediate, shape.intermediate,
                    shape.group, call.prepared_fc2.data() + row * call.prepared_fc2_bytes);
  }
}

void Engine::Fc2TileDone(Call* call, const Tile& tile) {
  if (call->state->TileDone(tile) != CallState::Progress::kTaskDone) return;
  Work& work = call->work[call->group[tile.task]];
  work.done = true;
  // Of the current generation, or a slot was reused under a lease: our bug.
  if (!cache_.Valid(*work.lease)) {
    FailCall(call, absl::InternalError("a leased slot has a new generation"));
    return;
  }
  loads_[work.lease->slot].task = -1;
  cache_.Drop(*work.lease);
  work.lease.reset();
}

}  // namespace stoker::offload
