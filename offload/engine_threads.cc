// The half of the engine that runs while a group of experts is loaded and computed. Everything here
// holds the engine's lock but the reads and the tiles themselves.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "offload/engine_call.h"

namespace stoker::offload {
namespace {

bool FiniteScales(const char* data, uint64_t bytes, ScaleType type) {
  // All bits of the exponent set: infinite or not a number.
  if (type == ScaleType::kFp32) {
    for (uint64_t i = 0; i + 4 <= bytes; i += 4) {
      uint32_t bits;
      std::memcpy(&bits, data + i, sizeof(bits));
      if ((bits & 0x7f800000) == 0x7f800000) return false;
    }
    return true;
  }
  const uint16_t exponent = type == ScaleType::kBf16 ? 0x7f80 : 0x7c00;
  for (uint64_t i = 0; i + 2 <= bytes; i += 2) {
    uint16_t bits;
    std::memcpy(&bits, data + i, sizeof(bits));
    if ((bits & exponent) == exponent) return false;
  }
  return true;
}

}  // namespace

void Engine::Bind(Call* call, int index, const Lease& lease, bool load) {
  Work& work = call->work[index];
  work.lease = lease;
  LoadPlan plan = MakeLoadPlan(checkpoint_->shape(), checkpoint_->extents(call->layer, work.expert),
                               layout_, options_.chunk_bytes);
  const int task = static_cast<int>(call->group.size());
  call->group.push_back(index);
  call->tasks.push_back({std::move(plan.tiles), std::vector<bool>(plan.reads.size(), !load)});
  ++(load ? stats_.misses : stats_.hits);
  if (!load) return;
  for (size_t c = 0; c < plan.reads.size(); ++c) {
    call->reads.push_back({active_, task, index, static_cast<int>(c), plan.reads[c], lease.slot});
  }
}

void Engine::StartGroup(Call* call) {
  call->group.clear();
  call->tasks.clear();
  call->reads.clear();
  call->group_ended = false;
  // Everything of the call that is resident is leased before any victim is chosen.
  std::vector<int> absent;
  for (size_t w = 0; w < call->work.size(); ++w) {
    if (call->work[w].done) continue;
    const auto lease = cache_.Join(call->layer, call->work[w].expert);
    if (lease) {
      Bind(call, static_cast<int>(w), *lease, /*load=*/false);
    } else {
      absent.push_back(static_cast<int>(w));
    }
  }
  for (const int w : absent) {
    const int expert = call->work[w].expert;
    const LoadPlan plan =
        MakeLoadPlan(checkpoint_->shape(), checkpoint_->extents(call->layer, expert), layout_,
                     options_.chunk_bytes);
    const auto lease =
        cache_.BeginLoad(call->layer, expert, static_cast<uint32_t>(plan.reads.size()));
    if (!lease) break;  // the rest waits for the next group
    Bind(call, w, *lease, /*load=*/true);
  }
  call->reads_left = static_cast<int>(call->reads.size());
  call->state = std::make_unique<CallState>(options_.scheduler, std::move(call->tasks));
  for (Loading& read : call->reads) queue_.push_back(std::move(read));
  call->reads.clear();
  if (call->group.empty()) FailCall(call, absl::InternalError("no slot is free in an idle cache"));
  EndGroupIfDone(call);
  work_ready_.notify_all();
  read_ready_.notify_all();
}

absl::Status Engine::FinishGroup(std::unique_lock<std::mutex>* lock, std::shared_ptr<Call> call,
                                 const Deadline& deadline) {
  while (!call->group_ended) {
    group_done_.wait_for(*lock, absl::ToChronoMicroseconds(deadline.Left()));
    if (call->group_ended || !deadline.Passed()) continue;
    FailCall(call.get(), absl::DeadlineExceededError(absl::StrCat(
                             "layer ", checkpoint_->layers()[call->layer], " was not done within ",
                             absl::FormatDuration(deadline.timeout()), "; ", call->reads_left,
                             " reads were missing")));
    return call->status;
  }
  return call->status;
}

// Whoever ends the last read or tile of a group gives its leases back, also when nobody waits.
void Engine::EndGroupIfDone(Call* call) {
  if (call->group_ended || call->reads_left > 0 || !call->state->finished()) return;
  for (const int index : call->group) {
    Work& work = call->work[index];
    if (work.lease) cache_.Drop(*work.lease);
    work.lease.reset();
  }
  call->group_ended = true;
  active_ = nullptr;
  group_done_.notify_all();
  work_ready_.notify_all();
}

void Engine::FailCall(Call* call, absl::Status status) {
  if (call->status.ok()) call->status = std::move(status);
  call->state->Fail();
  // What no lane has taken is not read any more.
  for (auto it = queue_.begin(); it != queue_.end();) {
    if (it->call.get() != call) {
      ++it;
      continue;
    }
    cache_.ReadDone(it->slot, false);
    --call->reads_left;
    it = queue_.erase(it);
  }
  EndGroupIfDone(call);
}

absl::Status Engine::ReadChunk(const Loading& loading) const {
  const Read& read = loading.read;
  char* into = arena_->data() + loading.slot * layout_.slot_bytes + read.position;
  absl::Status status =
      ReadFully(checkpoint_->file(read.file), read.offset, absl::MakeSpan(into, read.bytes));
  if (status.ok()) status = checkpoint_->CheckFile(read.file);
  if (status.ok() && read.part >= kGateScale &&
      !FiniteScales(into, read.bytes, checkpoint_->shape().scale_type)) {
    status = absl::DataLossError(
        absl::StrCat(checkpoint_->file(read.file).path(), ": a scale is not finite"));
  }
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat("layer ", checkpoint_->layers()[loading.call->layer], ", expert ",
                   loading.call->work[loading.work].expert, ", ", PartName(read.part),
                   " at offset ", read.offset, ": ", status.message()));
}

void Engine::ReadChunks() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    read_ready_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Loading loading = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    absl::Status status = ReadChunk(loading);
    lock.lock();
    Call* call = loading.call.get();
    cache_.ReadDone(loading.slot, status.ok());
    --call->reads_left;
    if (!status.ok()) {
      FailCall(call, std::move(status));
      continue;
    }
    stats_.bytes_read += static_cast<int64_t>(loading.read.bytes);
    call->state->ChunkArrived(loading.task, loading.chunk);
    EndGroupIfDone(call);
    work_ready_.notify_all();
  }
}

ExpertView Engine::View(const Call& call, const Work& work) const {
  ExpertView view{checkpoint_->shape(), {}};
  const char* slot = arena_->data() + work.lease->slot * layout_.slot_bytes;
  const ExpertExtents& extents = checkpoint_->extents(call.layer, work.expert);
  for (int part = 0; part < kParts; ++part) {
    view.parts[part] = slot + layout_.Position(part, extents.parts[part]);
  }
  return view;
}

void Engine::ComputeTile(Call& call, const Tile& tile) const {
  const ExpertShape& shape = checkpoint_->shape();
  const Work& work = call.work[call.group[tile.task]];
  const ExpertView view = View(call, work);
  const int begin = tile.index * kTileRows;
  const int end = std::min(begin + kTileRows, tile.phase == 1 ? shape.intermediate : shape.hidden);
  for (size_t i = 0; i < work.routes.size(); ++i) {
    const size_t row = work.first_row + i;
    if (tile.phase == 1) {
      const size_t token = work.routes[i] / call.top_k;
      kernel_.Fc1(view, call.prepared.data() + token * call.prepared_bytes, begin, end,
                  call.intermediate.data() + row * shape.intermediate);
    } else {
      kernel_.Fc2(view, call.prepared_fc2.data() + row * call.prepared_fc2_bytes, begin, end,
                  call.rows.data() + row * shape.hidden);
    }
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
  cache_.Drop(*work.lease);
  work.lease.reset();
}

void Engine::Compute() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    std::optional<Tile> tile;
    work_ready_.wait(lock, [&] {
      if (active_ != nullptr) tile = active_->state->Next();
      return tile.has_value() || (stop_ && active_ == nullptr);
    });
    if (!tile) return;
    const std::shared_ptr<Call> call = active_;
    lock.unlock();
    ComputeTile(*call, *tile);
    lock.lock();
    bool last_of_fc1 = false;
    if (tile->phase == 2) {
      Fc2TileDone(call.get(), *tile);
    } else {
      last_of_fc1 = call->state->TileDone(*tile) == CallState::Progress::kFc1Done;
    }
    if (last_of_fc1) {
      lock.unlock();
      PrepareFc2(*call, tile->task);
      lock.lock();
      call->state->StartFc2(tile->task);
      work_ready_.notify_all();
    }
    EndGroupIfDone(call.get());
  }
}

}  // namespace stoker::offload
