// A call from its batch to its sum: which experts, which slots, when it is over.
#include "offload/engine_call.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace stoker::offload {

absl::Status Engine::WaitIdle(Lock* lock, const Deadline& deadline) {
  while (active_ != nullptr) {
    idle_.wait_for(*lock, absl::ToChronoMicroseconds(deadline.Left()));
    if (active_ != nullptr && deadline.Passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("the engine was busy for ", absl::FormatDuration(deadline.timeout())));
    }
  }
  return absl::OkStatus();
}

std::shared_ptr<Engine::Call> Engine::MakeCall(const Batch& batch, int first_token, int tokens) {
  std::shared_ptr<Call> call;
  int64_t skipped = 0;
  std::map<int, std::vector<int>> routes;
  for (int route = 0; route < tokens * batch.top_k; ++route) {
    const int id = batch.expert_ids[static_cast<size_t>(first_token) * batch.top_k + route];
    if (id < 0 || id >= checkpoint_->experts()) {
      ++skipped;
    } else if (id % options_.world_size == options_.rank) {
      routes[id].push_back(route);
    }
  }
  {
    Lock lock(mutex_);
    stats_.skipped_routes += skipped;
    // Not the spare one if a thread of a call that was left still holds it.
    if (spare_ != nullptr && spare_.use_count() == 1) call = std::move(spare_);
    spare_ = nullptr;
  }
  if (call == nullptr) call = std::make_shared<Call>();
  const ExpertShape& shape = checkpoint_->shape();
  call->layer = batch.layer_index;
  call->tokens = tokens;
  call->top_k = batch.top_k;
  call->status = absl::OkStatus();
  call->work.clear();
  size_t rows = 0;
  for (auto& [expert, of_expert] : routes) {
    call->work.push_back({expert, std::move(of_expert), rows, false, std::nullopt});
    rows += call->work.back().routes.size();
  }
  call->prepared_bytes = kernel_.PreparedBytes(shape.hidden, shape.group);
  call->prepared_fc2_bytes = kernel_.PreparedBytes(shape.intermediate, shape.group);
  call->intermediate.resize(rows * shape.intermediate);
  call->prepared_fc2.Resize(call->prepared_fc2_bytes * rows);
  call->rows.resize(rows * shape.hidden);
  const float* hidden = batch.hidden + static_cast<size_t>(first_token) * shape.hidden;
  if (tokens == 1) {
    call->prepared.Resize(call->prepared_bytes);
    kernel_.Prepare(hidden, shape.hidden, shape.group, call->prepared.data());
    return call;
  }
  // A row a route, in the order of the experts, so that a tile runs over neighbours.
  call->prepared.Resize(call->prepared_bytes * rows);
  std::vector<const char*> of_token(tokens, nullptr);
  for (const Work& work : call->work) {
    for (size_t i = 0; i < work.routes.size(); ++i) {
      char* row = call->prepared.data() + (work.first_row + i) * call->prepared_bytes;
      const int token = work.routes[i] / batch.top_k;
      if (of_token[token] != nullptr) {
        std::memcpy(row, of_token[token], call->prepared_bytes);
        continue;
      }
      kernel_.Prepare(hidden + static_cast<size_t>(token) * shape.hidden, shape.hidden, shape.group,
                      row);
      of_token[token] = row;
    }
  }
  return call;
}

absl::Status Engine::RunPart(const Batch& batch, int first_token, int tokens,
                             const Deadline& deadline, float* out) {
  const std::shared_ptr<Call> call = MakeCall(batch, first_token, tokens);
  {
    Lock lock(mutex_);
    size_t done = 0;
    while (done < call->work.size()) {
      // Another call may have come between two groups of this one.
      STOKER_RETURN_IF_ERROR(WaitIdle(&lock, deadline));
      if (done == 0) {
        cache_.BeginStep(call->layer);
        WarnOfASmallCache(*call);
      }
      active_ = call;
      StartGroup(call.get());
      done += call->group.size();
      STOKER_RETURN_IF_ERROR(Help(&lock, call, deadline));
    }
  }
  Reduce(*call, batch, first_token, out);
  Lock lock(mutex_);
  spare_ = call;
  return absl::OkStatus();
}

void Engine::WarnOfASmallCache(const Call& call) {
  const int share = cache_.slots(call.layer);
  if (warned_small_ || call.tokens > 1 || static_cast<int>(call.work.size()) <= share) return;
  warned_small_ = true;
  std::fprintf(stderr,
               "stoker: a token wants %zu experts of layer %d and the cache has %d slots for it; "
               "raise the budget to at least %zu times the layers plus %d slots of %llu bytes\n",
               call.work.size(), checkpoint_->layers()[call.layer], share, call.work.size(),
               ExpertCache::kScratchSlots, static_cast<unsigned long long>(layout_.slot_bytes));
}

void Engine::Bind(Call* call, int index, const Lease& lease, TaskPlan plan) {
  Work& work = call->work[index];
  work.lease = lease;
  SlotLoad& load = loads_[lease.slot];
  load.task = static_cast<int>(call->group.size());
  call->group.push_back(index);
  std::vector<bool> arrived;
  if (!plan.tiles_of_chunk.empty()) arrived = load.arrived;
  call->tasks.push_back({std::move(plan), std::move(arrived)});
  call->reads_left += static_cast<int>(cache_.fields(lease.slot).in_flight);
  for (const Extent& extent : checkpoint_->extents(call->layer, work.expert).parts) {
    stats_.bytes_computed += static_cast<int64_t>(extent.bytes);
  }
}

bool Engine::BindMiss(Call* call, int index) {
  const int expert = call->work[index].expert;
  LoadPlan plan = PlanOf(call->layer, expert);
  const uint32_t reads = static_cast<uint32_t>(plan.reads.size());
  auto lease = cache_.BeginLoad(call->layer, expert, reads);
  if (!lease && !prefetch_.empty()) {
    // Prefetches must not stand in the way of a demand.
    std::vector<int> slots;
    for (const QueuedRead& read : prefetch_) slots.push_back(read.slot);
    for (const int slot : slots) {
      if (cache_.Cancel(slot)) DropQueued(slot);
    }
    lease = cache_.BeginLoad(call->layer, expert, reads);
  }
  if (!lease) return false;
  ++stats_.misses;
  StartLoad(lease->slot, call->layer, expert, std::move(plan.reads), /*prefetch=*/false);
  Bind(call, index, *lease, std::move(plan.tiles));
  return true;
}

void Engine::StartGroup(Call* call) {
  call->group.clear();
  call->tasks.clear();
  call->reads_left = 0;
  call->group_ended = false;
  // Everything of the call that is resident or on its way is leased before any victim is chosen.
  std::vector<int> absent;
  for (size_t w = 0; w < call->work.size(); ++w) {
    if (call->work[w].done) continue;
    const int expert = call->work[w].expert;
    const auto lease = cache_.Join(call->layer, expert);
    if (!lease) {
      absent.push_back(static_cast<int>(w));
      continue;
    }
    ++stats_.hits;
    Promote(lease->slot);
    const bool whole = cache_.fields(lease->slot).state == SlotState::kReady;
    Bind(call, static_cast<int>(w), *lease,
         whole ? ResidentPlan(checkpoint_->shape()) : PlanOf(call->layer, expert).tiles);
  }
  for (const int w : absent) {
    if (!BindMiss(call, w)) break;  // the rest waits for the next group
  }
  call->state = std::make_unique<CallState>(options_.scheduler, std::move(call->tasks));
  if (call->group.empty()) FailCall(call, absl::InternalError("no slot is free in an idle cache"));
  Signal(/*all=*/true);
  for (const auto& lane : lanes_) {
    if (!demand_.empty()) lane->Wake();
  }
}

// Whoever ends the last read or tile of a group gives its leases back, also when nobody waits.
void Engine::EndGroupIfDone() {
  Call* call = active_.get();
  if (call == nullptr || call->reads_left > 0 || !call->state->finished()) return;
  for (const int index : call->group) {
    Work& work = call->work[index];
    if (!work.lease) continue;
    loads_[work.lease->slot].task = -1;
    cache_.Drop(*work.lease);
    work.lease.reset();
  }
  call->group_ended = true;
  active_ = nullptr;
  idle_.notify_all();
  Signal(/*all=*/true);
}

void Engine::FailCall(Call* call, absl::Status status) {
  if (call->status.ok()) call->status = std::move(status);
  call->state->Fail();
  // What no lane has taken is not read any more.
  for (const int index : call->group) {
    if (call->work[index].lease) DropQueued(call->work[index].lease->slot);
  }
  EndGroupIfDone();
}

void Engine::Reduce(const Call& call, const Batch& batch, int first_token, float* out) const {
  const size_t hidden = checkpoint_->shape().hidden;
  const size_t values = call.tokens * hidden;
  std::fill(out, out + values, 0.0f);
  for (const Work& work : call.work) {
    for (size_t i = 0; i < work.routes.size(); ++i) {
      const int route = work.routes[i];
      const float weight = batch.weights[static_cast<size_t>(first_token) * batch.top_k + route];
      kernel_.Accumulate(weight, call.rows.data() + (work.first_row + i) * hidden, hidden,
                         out + static_cast<size_t>(route / call.top_k) * hidden);
    }
  }
  if (batch.routed_scaling_factor == 1.0f) return;
  for (size_t i = 0; i < values; ++i) out[i] *= batch.routed_scaling_factor;
}

}  // namespace stoker::offload
