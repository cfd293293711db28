#include "offload/trace/replay.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace stoker::offload {
namespace {

constexpr double kNextUseAlpha = 0.9;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct Entry {
  bool resident = false;
  int64_t last = -1;      // group that used it last, counted over all layers
  int64_t before = -1;    // and the one before that
  int64_t last_step = 0;  // of its layer
  int64_t inserted = 0;
  int64_t uses = 0;
  double decayed = 0;    // at last_step
  double frequency = 0;  // at last_step
  size_t next = 0;       // into `future`
  std::vector<int64_t> future;
};

class Simulation {
 public:
  Simulation(const Trace& trace, const ReplayOptions& options)
      : trace_(trace),
        options_(options),
        entries_(static_cast<size_t>(trace.layers) * trace.experts),
        steps_(trace.layers, 0),
        resident_(options.global ? 1 : trace.layers) {
    for (size_t g = 0; g < trace.groups.size(); ++g) {
      for (const size_t key : Keys(trace.groups[g])) {
        entries_[key].future.push_back(static_cast<int64_t>(g));
      }
    }
  }

  ReplayResult Run() {
    for (now_ = 0; now_ < static_cast<int64_t>(trace_.groups.size()); ++now_) {
      Serve(trace_.groups[now_]);
    }
    return result_;
  }

 private:
  std::vector<size_t> Keys(const RouteGroup& group) const {
    std::vector<size_t> keys;
    for (const Route& route : group.routes) {
      const size_t key = static_cast<size_t>(group.layer) * trace_.experts + route.expert;
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
    return keys;
  }

  void Serve(const RouteGroup& group) {
    layer_ = group.layer;
    const std::vector<size_t> keys = Keys(group);
    std::vector<size_t>& pool = resident_[options_.global ? 0 : group.layer];
    const size_t capacity =
        static_cast<size_t>(options_.slots_per_layer) * (options_.global ? trace_.layers : 1);
    // Hits first: what is resident is protected before any victim is chosen.
    std::vector<size_t> misses;
    for (const size_t key : keys) {
      ++result_.uses;
      if (entries_[key].resident) {
        ++result_.hits;
      } else {
        misses.push_back(key);
      }
    }
    for (const size_t key : misses) {
      if (pool.size() >= capacity && !Evict(&pool, keys)) continue;
      entries_[key].resident = true;
      entries_[key].inserted = now_;
      pool.push_back(key);
    }
    const int64_t step = ++steps_[group.layer];
    for (const size_t key : keys) Touch(&entries_[key], step);
  }

  bool Evict(std::vector<size_t>* pool, const std::vector<size_t>& keys) {
    size_t victim = pool->size();
    std::pair<double, int64_t> lowest;
    for (size_t i = 0; i < pool->size(); ++i) {
      const size_t key = (*pool)[i];
      if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
      const std::pair<double, int64_t> value(Worth(key), entries_[key].last);
      if (victim == pool->size() || value < lowest) {
        victim = i;
        lowest = value;
      }
    }
    if (victim == pool->size()) return false;
    entries_[(*pool)[victim]].resident = false;
    (*pool)[victim] = pool->back();
    pool->pop_back();
    return true;
  }

  // The lowest goes.
  double Worth(size_t key) {
    const Entry& e = entries_[key];
    const int layer = static_cast<int>(key / trace_.experts);
    const double age = static_cast<double>(steps_[layer] - e.last_step);
    switch (options_.policy) {
      case ReplayPolicy::kBelady:
        return -static_cast<double>(e.next < e.future.size() ? e.future[e.next] : kNever);
      case ReplayPolicy::kLru:
        return static_cast<double>(e.last);
      case ReplayPolicy::kLfu:
        return static_cast<double>(e.uses);
      case ReplayPolicy::kLru2:
        return static_cast<double>(e.before);
      case ReplayPolicy::kDecayedLfu:
        return e.decayed * std::pow(options_.alpha, age);
      case ReplayPolicy::kEstimatedNextUse: {
        const double chance = e.frequency * std::pow(kNextUseAlpha, age) * (1 - kNextUseAlpha);
        const int distance = (layer - layer_ + trace_.layers - 1) % trace_.layers;
        return -(distance + trace_.layers * (1 / std::max(chance, 1e-9) - 1));
      }
      case ReplayPolicy::kFifo:
        return static_cast<double>(e.inserted);
      case ReplayPolicy::kRandom:
        break;
    }
    return static_cast<double>(random_() >> 11);
  }

  void Touch(Entry* e, int64_t step) const {
    const double age = static_cast<double>(step - e->last_step);
    e->decayed = e->decayed * std::pow(options_.alpha, age) + 1;
    e->frequency = e->frequency * std::pow(kNextUseAlpha, age) + 1;
    e->before = e->last;
    e->last = now_;
    e->last_step = step;
    ++e->uses;
    ++e->next;
  }

  const Trace& trace_;
  const ReplayOptions& options_;
  std::vector<Entry> entries_;
  std::vector<int64_t> steps_;  // groups served, by layer
  std::vector<std::vector<size_t>> resident_;
  std::mt19937_64 random_{1};
  int64_t now_ = 0;
  int layer_ = 0;
  ReplayResult result_;
};

}  // namespace

const char* PolicyName(ReplayPolicy policy) {
  switch (policy) {
    case ReplayPolicy::kBelady:
      return "belady";
    case ReplayPolicy::kLru:
      return "lru";
    case ReplayPolicy::kLfu:
      return "lfu";
    case ReplayPolicy::kLru2:
      return "lru-2";
    case ReplayPolicy::kDecayedLfu:
      return "decayed-lfu";
    case ReplayPolicy::kEstimatedNextUse:
      return "next-use";
    case ReplayPolicy::kFifo:
      return "fifo";
    case ReplayPolicy::kRandom:
      break;
  }
  return "random";
}

ReplayResult Replay(const Trace& trace, const ReplayOptions& options) {
  return Simulation(trace, options).Run();
}

}  // namespace stoker::offload
