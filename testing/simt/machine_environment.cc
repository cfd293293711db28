// What the environment asks of the machine, on the running thread: meeting, waiting and shared
// memory.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "testing/simt/machine.h"

namespace stoker::testing::simt {

bool Machine::Delayed() {
  const int choice = choices_++;
  const std::vector<int>& delays = *policy_.delays;
  if (delays_done_ == delays.size() || delays[delays_done_] != choice) return false;
  ++delays_done_;
  return true;
}

void Machine::Point(int stores, bool shared) {
  if (!wrong_.empty()) {
    SwitchOut();
    return;
  }
  if (policy_.delays != nullptr) {
    const bool last = shared && Delayed();
    uint32_t slow = 0;
    if (shared && stores > 0 && Delayed()) slow |= (1u << stores) - 1u;
    if (shared && stores > 1 && Delayed()) slow |= 1u << (stores - 1);  // a torn packet
    Running()->runnable = true;
    last ? queue_.push_back(Running()) : queue_.push_front(Running());
    SwitchOut();
    memory_.DelayNext(slow);
    return;
  }
  if (policy_.switch_rate < 256 && random_.Below(256) >= policy_.switch_rate) return;
  Running()->blocked = nullptr;
  MakeRunnable(Running());
  SwitchOut();
}

void Machine::Block(const char* what) {
  Running()->blocked = what;
  SwitchOut();
}

void Machine::ExitThread() {
  Running()->left = true;
  ThreadDone(Running());
  for (;;) SwitchOut();
}

void Machine::GridWait() {
  Thread* self = Running();
  Grid& grid = *self->cta->grid;
  if (grid.spec->waits_for_last) {
    while (grid.before != nullptr && !grid.before->complete) {
      grid.waiting.push_back(self);
      Block("waiting for the grid before");
    }
  }
  self->agent.Synchronise(memory_.now());
}

void Machine::LaunchDependents() {
  Cta& cta = *Running()->cta;
  if (cta.triggered) return;
  cta.triggered = true;
  ++cta.grid->triggered;
}

// A thread that is gone will not arrive.
void Machine::CheckBarriers(const Cta& cta) {
  for (const Barrier& b : cta.barriers) {
    const int others = cta.undone - static_cast<int>(b.waiting.size());
    if (!b.waiting.empty() && b.arrived + others < b.needed) {
      Wrong(absl::StrFormat("a barrier needs %d threads, and of the CTA's others %d are left",
                            b.needed, others));
    }
  }
}

void Machine::Meet(int barrier, int threads, bool wait, const char* what) {
  Thread* self = Running();
  Barrier& b = self->cta->barriers[barrier];
  if (wait) b.waiting.push_back(self);
  b.needed = threads;
  if (++b.arrived < threads) {
    CheckBarriers(*self->cta);
    if (wait) Block(what);
  } else {
    const uint32_t now = memory_.Tick();
    std::vector<Thread*> waiting = std::move(b.waiting);
    b = Barrier();
    for (Thread* thread : waiting) {
      thread->agent.barrier = now;
      thread->agent.Synchronise(now);
      if (thread != self) MakeRunnable(thread);
    }
    if (!waiting.empty()) Point();
  }
}

void Machine::ClusterArrive() {
  Thread* self = Running();
  Cluster& cluster = *self->cta->cluster;
  const int all = static_cast<int>(cluster.ctas.size() * self->cta->threads.size());
  if (++cluster.arrived < all) return;
  for (Thread* thread : cluster.waiting) MakeRunnable(thread);
  cluster.waiting.clear();
}

void Machine::ClusterWait() {
  Thread* self = Running();
  Cluster& cluster = *self->cta->cluster;
  const int all = static_cast<int>(cluster.ctas.size() * self->cta->threads.size());
  if (cluster.arrived < all) {
    cluster.waiting.push_back(self);
    Block("waiting at the cluster's barrier");
  }
  self->agent.Synchronise(memory_.now());
}

uint32_t Machine::Exchange(uint32_t value, int source, bool any, const char* what) {
  Thread* self = Running();
  Warp& warp = self->cta->warps[static_cast<size_t>(self->warp())];
  const int first = self->warp() * kWarpThreads;
  if (warp.arrived == 0) {
    warp.what = what;
    for (int lane = 0; lane < kWarpThreads; ++lane) {
      if (self->cta->threads[static_cast<size_t>(first + lane)]->done) {
        Wrong(absl::StrCat(what, " with lane ", lane, ", which has exited"));
      }
    }
  } else if (warp.what != what) {
    Wrong(absl::StrCat(what, " meets ", warp.what, " of another lane"));
  }
  warp.values[self->lane()] = value;
  warp.sources[self->lane()] = source;
  if (++warp.arrived < kWarpThreads) {
    Block(what);
    return self->exchanged;
  }
  warp.arrived = 0;
  uint32_t found = 0;
  for (uint32_t v : warp.values) found |= v;
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    Thread* thread = self->cta->threads[static_cast<size_t>(first + lane)];
    thread->exchanged = any ? found : warp.values[warp.sources[lane] & (kWarpThreads - 1)];
    if (thread != self) MakeRunnable(thread);
  }
  return self->exchanged;
}

void Machine::Await() {
  Thread* self = Running();
  if (!wrong_.empty()) {
    SwitchOut();
    return;
  }
  self->look = false;
  if (!memory_.NothingNew(self->agent)) {
    self->agent.polled.clear();
    Point();
    return;
  }
  if (policy_.look_rate > 0 && random_.Below(256) < policy_.look_rate) {
    self->look = true;
    self->agent.polled.clear();
    Point();
    return;
  }
  memory_.AwaitChange(self->agent);
  self->polling = true;
  Block("polling");
}

void Machine::Pause() {
  Thread* self = Running();
  Grid& grid = *self->cta->grid;
  if (grid.resume_ns == 0) grid.resume_ns = clock_ns_ + grid.spec->pause_ns;
  while (clock_ns_ < grid.resume_ns && wrong_.empty()) {
    self->agent.polled.clear();
    self->polling = true;
    Block("pausing");
  }
  self->look = false;
}

void Machine::MeetHosts() {
  hosts_.push_back(Running());
  if (hosts_.size() < ranks_.size()) {
    Block("waiting for the other hosts");
  } else {
    for (Thread* host : hosts_) {
      if (host != Running()) MakeRunnable(host);
    }
    hosts_.clear();
  }
  Running()->agent.Synchronise(memory_.now());
}

void Machine::InitPartials() { Running()->cta->initialised = true; }

void Machine::ExpectPartials(int slot, int count) {
  Cta& cta = *Running()->cta;
  cta.transactions[slot].expected += count;
  --cta.transactions[slot].pending;
  Settle(cta, slot);
  Point();
}

void Machine::SendPartial(int slot, int index, int cta, float value) {
  Cta* target = Running()->cta->cluster->ctas[static_cast<size_t>(cta)];
  partials_.push_back({target, slot, index, value});
  Point();
}

void Machine::DeliverPartial() {
  const size_t at = random_.Below(static_cast<uint32_t>(partials_.size()));
  const Partial_ partial = partials_[at];
  partials_[at] = partials_.back();
  partials_.pop_back();
  if (partial.cta->exited || !partial.cta->initialised) {
    Wrong(absl::StrCat("a partial goes to the shared memory of CTA ", partial.cta->index,
                       partial.cta->exited ? ", which has exited" : ", which is not initialised"));
    return;
  }
  partial.cta->partials[partial.slot][partial.index] = partial.value;
  --partial.cta->transactions[partial.slot].expected;
  Settle(*partial.cta, partial.slot);
}

void Machine::Settle(Cta& cta, int slot) {
  Cta::Transaction& transaction = cta.transactions[slot];
  if (transaction.pending > 0 || transaction.expected != 0) return;
  transaction.pending = 1;
  ++transaction.phase;
  for (Thread* thread : transaction.waiting) MakeRunnable(thread);
  transaction.waiting.clear();
}

void Machine::AwaitPartials(int slot, int phase) {
  Thread* self = Running();
  Cta::Transaction& transaction = self->cta->transactions[slot];
  while ((transaction.phase & 1) == phase) {
    transaction.waiting.push_back(self);
    Block("waiting for partials");
  }
  self->agent.Synchronise(memory_.now());
}

float& Machine::Partial(int slot, int index, int cta_in_cluster) {
  Cta* cta = Running()->cta->cluster->ctas[static_cast<size_t>(cta_in_cluster)];
  if (cta->exited) {
    Wrong(absl::StrCat("reads the shared memory of CTA ", cta->index, ", which has exited"));
  }
  return cta->partials[slot][index];
}

bool& Machine::Trouble() { return Running()->cta->trouble; }

}  // namespace stoker::testing::simt
