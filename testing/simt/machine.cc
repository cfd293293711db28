#include "testing/simt/machine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace stoker::testing::simt {

struct Machine::Rank {
  std::vector<Grid*> grids;
  int resident = 0;
  size_t first_undone = 0;
};

Thread*& Running() {
  static Thread* running = nullptr;
  return running;
}

Machine*& TheMachine() {
  static Machine* machine = nullptr;
  return machine;
}

Policy Policy::Draw(Random& random) {
  constexpr uint32_t kSwitch[] = {256, 256, 128, 48};
  constexpr uint32_t kStore[] = {8, 48, 128, 224};
  constexpr uint32_t kStale[] = {0, 16, 96, 200};
  constexpr uint32_t kSlow[] = {0, 4, 32, 160};
  Policy policy;
  policy.memory.stale = kStale[random.Below(4)];
  policy.memory.slow_store = kSlow[random.Below(4)];
  policy.switch_rate = kSwitch[random.Below(4)];
  policy.store_rate = kStore[random.Below(4)];
  policy.start_rate = 1u << random.Below(8);
  policy.look_rate = random.Below(8) == 0 ? 32 : 0;
  policy.levels = random.Below(2) == 0 ? 1 : 4;
  policy.change_points = static_cast<int>(random.Below(6));
  return policy;
}

Machine::Machine(int64_t arena_bytes) : memory_(arena_bytes) {}
Machine::~Machine() = default;

std::string Machine::Run(uint64_t seed, const Policy& policy, const Limits& limits,
                         const std::vector<std::vector<GridSpec>>& streams) {
  random_ = Random(seed);
  policy_ = policy;
  limits_ = limits;
  clock_ns_ = 0;
  ticks_ = 0;
  steps_ = 0;
  choices_ = 0;
  delays_done_ = 0;
  queue_.clear();
  hung_ = stopped_ = false;
  wrong_.clear();
  ranks_.clear();
  grids_.clear();
  ctas_.clear();
  clusters_.clear();
  threads_.clear();
  partials_.clear();
  hosts_.clear();
  runnable_.assign(static_cast<size_t>(policy.levels), {});
  level_of_warp_.clear();
  next_cta_ = 0;
  memory_.Begin(policy.memory, &random_);
  for (size_t r = 0; r < streams.size(); ++r) {
    ranks_.push_back(std::make_unique<Rank>());
    Grid* before = nullptr;
    for (const GridSpec& spec : streams[r]) {
      auto grid = std::make_unique<Grid>();
      grid->spec = &spec;
      grid->before = before;
      grid->id = static_cast<int>(grids_.size());
      grid->rank = static_cast<int>(r);
      grid->number = static_cast<int>(ranks_.back()->grids.size());
      grid->ctas_left = spec.ctas();
      for (int c = 0; c < spec.clusters; ++c) grid->order.push_back(c);
      for (int c = spec.clusters - 1; c > 0; --c) {
        std::swap(grid->order[c], grid->order[random_.Below(static_cast<uint32_t>(c + 1))]);
      }
      memory_.Watch(memory_.Word(&comm::ControlOf(spec.params.workspace[spec.params.rank])->abort));
      before = grid.get();
      ranks_.back()->grids.push_back(before);
      grids_.push_back(std::move(grid));
    }
  }
  for (const Watcher& watcher : watchers_) memory_.Watch(watcher.word);
  undone_ = static_cast<int>(grids_.size());
  TheMachine() = this;
  policy.delays == nullptr ? Loop() : LoopInTurn();
  if (wrong_.empty()) return wrong_;
  for (const auto& thread : pool_) thread->fiber = boost::context::fiber();  // unwinds it
  idle_.clear();
  for (const auto& thread : pool_) idle_.push_back(thread.get());
  return wrong_;
}

void Machine::HearOfChanges() {
  for (int32_t id : memory_.woken()) {
    Thread* thread = threads_[id];
    if (thread->polling && thread->agent.id == id) MakeRunnable(thread);
  }
  memory_.woken().clear();
  for (uint32_t word : memory_.watched_changes()) {
    for (const Watcher& watcher : watchers_) {
      if (watcher.word == word) watcher.changed();
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r]->grids.empty()) continue;
      const comm::ExchangeParams& p = ranks_[r]->grids[0]->spec->params;
      if (word == memory_.Word(&comm::ControlOf(p.workspace[p.rank])->abort)) {
        WakePollers(static_cast<int>(r), true);
        stopped_ = true;
      }
    }
  }
  memory_.watched_changes().clear();
  CompleteGrids();
}

void Machine::LoopInTurn() {
  while (wrong_.empty()) {
    ++steps_;
    HearOfChanges();
    if (undone_ == 0 && !memory_.has_fast() && !memory_.has_slow()) return;
    if (memory_.has_fast()) {
      memory_.PerformOldest(false);
    } else if (!partials_.empty()) {
      DeliverPartial();
    } else if (StartOne()) {
    } else if (!queue_.empty()) {
      Thread* thread = queue_.front();
      queue_.pop_front();
      thread->runnable = false;
      Resume(thread);
    } else if (memory_.has_slow()) {
      memory_.PerformOldest(true);
    } else if (!Tick()) {
      hung_ = true;
      wrong_ = absl::StrCat("nothing can happen any more:\n", Dump());
    }
  }
}

void Machine::Loop() {
  const auto chance = [this](uint32_t rate) { return random_.Below(256) < rate; };
  while (wrong_.empty()) {
    ++steps_;
    HearOfChanges();
    if (undone_ == 0 && !memory_.has_fast() && !memory_.has_slow()) return;
    bool any = false;
    for (const auto& list : runnable_) any = any || !list.empty();
    if (policy_.change_points > 0 && random_.Below(20000) < uint32_t(policy_.change_points) &&
        !level_of_warp_.empty()) {
      level_of_warp_[random_.Below(static_cast<uint32_t>(level_of_warp_.size()))] =
          static_cast<uint8_t>(random_.Below(static_cast<uint32_t>(policy_.levels)));
    }
    if (memory_.has_fast() && (!any || chance(policy_.store_rate))) {
      memory_.PerformOne(false);
    } else if (!partials_.empty() && (!any || chance(32))) {
      DeliverPartial();
    } else if ((!any || chance(policy_.start_rate)) && StartOne()) {
    } else if (any) {
      Resume(TakeRunnable());
    } else if (memory_.has_slow()) {
      memory_.PerformOne(true);
    } else if (!Tick()) {
      hung_ = true;
      wrong_ = absl::StrCat("nothing can happen any more:\n", Dump());
    }
  }
}

bool Machine::Tick() {
  // A group that was stopped takes time to end, whether it should have been stopped or not.
  constexpr int kTicksToStop = 500;
  if (ticks_++ >= std::max(limits_.ticks, stopped_ ? kTicksToStop : 0)) return false;
  clock_ns_ += limits_.tick_ns;
  for (size_t r = 0; r < ranks_.size(); ++r) WakePollers(static_cast<int>(r), true);
  return true;
}

void Machine::WakePollers(int rank, bool look) {
  for (Thread* thread : threads_) {
    if (!thread->polling || thread->cta->grid->rank != rank) continue;
    thread->look = look;
    MakeRunnable(thread);
  }
}

bool Machine::StartOne() {
  const uint32_t first = random_.Below(static_cast<uint32_t>(ranks_.size()));
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = *ranks_[(first + i) % ranks_.size()];
    bool in_order = true;  // false: only the host goes on
    for (size_t g = rank.first_undone; g < rank.grids.size(); ++g) {
      Grid& grid = *rank.grids[g];
      const GridSpec& spec = *grid.spec;
      if (spec.host) {
        if (grid.started == 0) {
          StartCluster(grid);
          return true;
        }
        if (!grid.complete) break;  // it launches what follows
      }
      // Stream order: after the grid before has started, and has triggered or completed.
      const Grid* before = grid.before;
      const bool ready = before == nullptr || before->complete ||
                         before->triggered == before->spec->ctas() ||
                         (spec.second_stream && before->started == before->spec->clusters);
      in_order = in_order && ready && spec.not_before_ns <= clock_ns_;
      if (!in_order || grid.started == spec.clusters) continue;
      if (rank.resident + spec.cluster_size > limits_.resident_ctas) {
        in_order = false;
        continue;
      }
      rank.resident += spec.cluster_size;
      StartCluster(grid);
      return true;
    }
  }
  return false;
}

void Machine::StartCluster(Grid& grid) {
  const GridSpec& spec = *grid.spec;
  clusters_.push_back(std::make_unique<Cluster>());
  Cluster& cluster = *clusters_.back();
  cluster.grid = &grid;
  cluster.index = grid.order[static_cast<size_t>(grid.started++)];
  for (int c = 0; c < spec.cluster_size; ++c) {
    ctas_.push_back(std::make_unique<Cta>());
    Cta& cta = *ctas_.back();
    cta.id = next_cta_++;
    cta.grid = &grid;
    cta.cluster = &cluster;
    cta.index = cluster.index * spec.cluster_size + c;
    cta.undone = spec.warps * kWarpThreads;
    cta.warps.resize(static_cast<size_t>(spec.warps));
    for (auto& slot : cta.partials) {
      for (float& partial : slot) partial = __builtin_nanf("");
    }
    cluster.ctas.push_back(&cta);
    for (int w = 0; w < spec.warps; ++w) {
      level_of_warp_.push_back(
          static_cast<uint8_t>(random_.Below(static_cast<uint32_t>(policy_.levels))));
    }
    for (int t = 0; t < cta.undone; ++t) {
      Thread* thread = NewThread();
      thread->cta = &cta;
      thread->index = t;
      thread->agent.id = static_cast<int32_t>(threads_.size());
      thread->agent.cta = cta.id;
      thread->agent.grid = grid.id;
      thread->agent.barrier = 0;
      thread->agent.polled.clear();
      thread->agent.started = memory_.now();
      thread->agent.Synchronise(memory_.now());
      threads_.push_back(thread);
      cta.threads.push_back(thread);
      MakeRunnable(thread);
    }
  }
}

Thread* Machine::NewThread() {
  if (idle_.empty()) {
    pool_.push_back(std::make_unique<Thread>());
    idle_.push_back(pool_.back().get());
  }
  Thread* thread = idle_.back();
  idle_.pop_back();
  thread->done = thread->polling = thread->look = thread->runnable = false;
  thread->blocked = nullptr;
  if (thread->left) thread->fiber = boost::context::fiber();  // unwinds it
  thread->left = false;
  if (!thread->fiber) {
    thread->fiber = boost::context::fiber(std::allocator_arg,
                                          boost::context::protected_fixedsize_stack(64 * 1024),
                                          [this, thread](boost::context::fiber&& caller) {
                                            scheduler_ = std::move(caller);
                                            for (;;) {
                                              thread->cta->grid->spec->body();
                                              ThreadDone(thread);
                                              SwitchOut();
                                            }
                                            return std::move(scheduler_);
                                          });
  }
  return thread;
}

void Machine::Resume(Thread* thread) {
  Running() = thread;
  thread->blocked = nullptr;
  thread->fiber = std::move(thread->fiber).resume();
}

void Machine::SwitchOut() { scheduler_ = std::move(scheduler_).resume(); }

int Machine::LevelOf(const Thread& thread) {
  if (policy_.levels == 1) return 0;
  // Warps are numbered as they start.
  const size_t warp = static_cast<size_t>(thread.agent.id) / kWarpThreads;
  return level_of_warp_[warp];
}

void Machine::MakeRunnable(Thread* thread) {
  if (thread->runnable || thread->done) return;
  thread->runnable = true;
  thread->polling = false;
  if (policy_.delays != nullptr) {
    queue_.push_back(thread);
    return;
  }
  runnable_[static_cast<size_t>(LevelOf(*thread))].push_back(thread);
}

Thread* Machine::TakeRunnable() {
  for (auto& list : runnable_) {
    if (list.empty()) continue;
    const size_t at = random_.Below(static_cast<uint32_t>(list.size()));
    Thread* thread = list[at];
    list[at] = list.back();
    list.pop_back();
    thread->runnable = false;
    return thread;
  }
  return nullptr;
}

void Machine::ThreadDone(Thread* thread) {
  thread->done = true;
  Cta& cta = *thread->cta;
  const Warp& warp = cta.warps[static_cast<size_t>(thread->warp())];
  if (warp.arrived > 0) {
    Wrong(absl::StrCat(warp.what, " waits for lane ", thread->lane(), ", which has exited"));
  }
  if (--cta.undone > 0) return CheckBarriers(cta);
  cta.exited = true;
  for (auto& slot : cta.partials) {
    for (float& partial : slot) partial = __builtin_nanf("");
  }
  Grid& grid = *cta.grid;
  if (!cta.triggered) ++grid.triggered;
  cta.triggered = true;
  --grid.ctas_left;
  if (!grid.spec->host) --ranks_[static_cast<size_t>(grid.rank)]->resident;
  // A fiber is in use until it has switched out, which it does next.
  for (Thread* done : cta.threads) idle_.push_back(done);
}

void Machine::CompleteGrids() {
  for (auto& rank : ranks_) {
    while (rank->first_undone < rank->grids.size()) {
      Grid& grid = *rank->grids[rank->first_undone];
      if (grid.ctas_left > 0 || memory_.pending_of(grid.id) > 0) break;
      grid.complete = true;
      ++rank->first_undone;
      --undone_;
      if (grid.spec->after) grid.spec->after();
      if (rank->first_undone < rank->grids.size()) {
        for (Thread* waiting : rank->grids[rank->first_undone]->waiting) MakeRunnable(waiting);
      }
    }
  }
}

std::string Machine::Dump() const {
  std::string text = absl::StrFormat("clock %d ns, step %d\n", clock_ns_, steps_);
  for (const auto& grid : grids_) {
    if (grid->complete) continue;
    absl::StrAppendFormat(&text, "rank %d launch %d: %d of %d clusters started, %d CTAs left\n",
                          grid->rank, grid->number, grid->started, grid->spec->clusters,
                          grid->ctas_left);
    if (text.size() > 4000) break;
  }
  // Lanes of a warp that stand at the same place share a line.
  const auto place = [](const Thread& t) {
    return t.blocked != nullptr ? t.blocked : "not started or runnable";
  };
  for (const auto& cta : ctas_) {
    if (cta->exited) continue;
    for (size_t t = 0; t < cta->threads.size() && text.size() < 8000;) {
      const Thread& first = *cta->threads[t];
      size_t end = t + 1;
      while (end < cta->threads.size() && end % kWarpThreads != 0 &&
             cta->threads[end]->done == first.done && place(*cta->threads[end]) == place(first)) {
        ++end;
      }
      absl::StrAppendFormat(&text, "  rank %d launch %d CTA %d warp %d lanes %d to %d: %s\n",
                            cta->grid->rank, cta->grid->number, cta->index, first.warp(),
                            first.lane(), (end - 1) % kWarpThreads,
                            first.done ? "done" : place(first));
      t = end;
    }
  }
  return text;
}

void Machine::Wrong(const std::string& what) {
  if (!wrong_.empty()) return;
  const Thread* thread = Running();
  wrong_ = absl::StrFormat("rank %d launch %d CTA %d warp %d lane %d: %s", thread->cta->grid->rank,
                           thread->cta->grid->number, thread->cta->index, thread->warp(),
                           thread->lane(), what);
}

}  // namespace stoker::testing::simt
