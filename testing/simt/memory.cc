#include "testing/simt/memory.h"

#include <algorithm>
#include <cstdlib>

namespace stoker::testing::simt {
namespace {

constexpr int kGridsMax = 256;

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

}  // namespace

Memory::Memory(int64_t bytes)
    : arena_(static_cast<size_t>(bytes / 4)), cells_(arena_.size()), grid_pending_(kGridsMax) {}

void Memory::Begin(const Weakness& weakness, Random* random) {
  weakness_ = weakness;
  random_ = random;
  ++schedule_;
  pending_.clear();
  free_.clear();
  lists_[0].clear();
  lists_[1].clear();
  std::fill(grid_pending_.begin(), grid_pending_.end(), 0);
  woken_.clear();
  watched_changes_.clear();
  touched_.clear();
  delay_mask_ = 0;
  now_ = 1;
  hash_ = 0;
  operations_ = 0;
}

uint32_t Memory::Word(const void* p) const {
  const int64_t offset = static_cast<const char*>(p) - reinterpret_cast<const char*>(arena_.data());
  if (offset < 0 || offset >= bytes() || offset % 4 != 0) std::abort();
  return static_cast<uint32_t>(offset / 4);
}

void Memory::Touch(uint32_t word) {
  Cell& cell = cells_[word];
  cell.schedule = schedule_;
  cell.versions[0] = Version{0, arena_[word], 0, -1, -1};
  cell.newest = 0;
  cell.count = 1;
  cell.first = -1;
  cell.watched = false;
  cell.hash = 0;
  cell.waiters.clear();
  touched_.push_back(word);
}

void Memory::Log(int32_t agent, uint32_t kind, uint32_t word, uint32_t value) {
  const uint64_t what = static_cast<uint64_t>(static_cast<uint32_t>(agent)) << 34 |
                        static_cast<uint64_t>(kind) << 32 | value;
  ++operations_;
  hash_ = Mix(Mix(hash_, what), word);
  Cell& cell = CellOf(word);
  cell.hash = Mix(cell.hash, what);
}

uint64_t Memory::class_hash() const {
  uint64_t sum = 0;
  for (uint32_t word : touched_) sum += Mix(cells_[word].hash, word);
  return sum;
}

uint64_t Memory::Newest(uint32_t word, int count) {
  uint64_t value = NewestOf(word).value;
  if (count == 2) value |= static_cast<uint64_t>(NewestOf(word + 1).value) << 32;
  return value;
}

uint32_t Memory::ValueAt(uint32_t word, uint32_t time) {
  const Cell& cell = CellOf(word);
  for (int back = 0; back < cell.count; ++back) {
    const Version& version = cell.versions[(cell.newest - back) & (kVersions - 1)];
    if (version.time <= time || back == cell.count - 1) return version.value;
  }
  return 0;
}

void Memory::Load(Agent& agent, uint32_t word, int count, bool weak, uint32_t* values) {
  uint32_t times[2 * kVersions + 1];  // at which the access may have read
  int choices = 0;
  bool own = false;
  times[choices++] = now_;
  for (int i = 0; i < count; ++i) {
    Cell& cell = CellOf(word + i);
    for (int32_t p = cell.first; p >= 0; p = pending_[p].next) {
      if (!Visible(pending_[p], agent)) continue;
      own = true;
      for (int k = 0; k < count; ++k) values[k] = pending_[p].values[k];
    }
    uint32_t floor = agent.floor;
    if (!weak) {
      for (const Agent::Seen& seen : agent.seen) {
        if (seen.word == word + i) floor = std::max(floor, seen.time);
      }
    }
    for (int back = 0; back + 1 < cell.count; ++back) {
      const Version& version = cell.versions[(cell.newest - back) & (kVersions - 1)];
      if (version.time <= floor || Visible(version, agent)) break;
      times[choices++] = version.time - 1;
    }
  }
  if (own) {
    Log(agent.id, 0, word, values[0]);
    return;
  }
  uint32_t time = times[0];
  if (choices > 1 && random_->Below(256) < weakness_.stale) {
    time = times[random_->Below(static_cast<uint32_t>(choices))];
  }
  for (int i = 0; i < count; ++i) {
    values[i] = ValueAt(word + i, time);
    if (weak) continue;
    const uint32_t seen = std::min(time, NewestOf(word + i).time);
    agent.polled.push_back({word + i, seen});
    if (seen > agent.floor) {
      bool known = false;
      for (Agent::Seen& old : agent.seen) {
        if (old.word != word + i) continue;
        old.time = std::max(old.time, seen);
        known = true;
      }
      if (!known) agent.seen.push_back({word + i, seen});
    }
  }
  Log(agent.id, 0, word, values[0]);
}

void Memory::Store(Agent& agent, uint32_t word, int count, const uint32_t* values) {
  int32_t index;
  if (free_.empty()) {
    index = static_cast<int32_t>(pending_.size());
    pending_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  Pending& p = pending_[index];
  const bool slow = (delay_mask_ & 1u) != 0u || random_->Below(256) < weakness_.slow_store;
  delay_mask_ >>= 1;
  const int list = slow ? 1 : 0;
  p = Pending{word,
              {values[0], count == 2 ? values[1] : 0u},
              Tick(),
              agent.barrier,
              count,
              agent.id,
              agent.cta,
              agent.grid,
              -1,
              list,
              static_cast<int32_t>(lists_[list].size())};
  lists_[list].push_back(index);
  ++grid_pending_[agent.grid];
  int32_t* link = &CellOf(word).first;
  while (*link >= 0) link = &pending_[*link].next;
  *link = index;
  Log(agent.id, 1, word, values[0]);
}

void Memory::Remove(int32_t index) {
  Pending& p = pending_[index];
  int32_t* link = &CellOf(p.word).first;
  while (*link != index) link = &pending_[*link].next;
  *link = p.next;
  std::vector<int32_t>& list = lists_[p.list];
  list[p.at] = list.back();
  pending_[list.back()].at = p.at;
  list.pop_back();
  --grid_pending_[p.grid];
  free_.push_back(index);
}

void Memory::CommitWord(uint32_t word, uint32_t value, int32_t agent, int32_t cta,
                        uint32_t issued) {
  Cell& cell = CellOf(word);
  cell.newest = (cell.newest + 1) & (kVersions - 1);
  cell.count = std::min(cell.count + 1, kVersions);
  cell.versions[cell.newest] = Version{now_, value, issued, agent, cta};
  arena_[word] = value;
  for (int32_t waiter : cell.waiters) woken_.push_back(waiter);
  cell.waiters.clear();
  if (cell.watched) watched_changes_.push_back(word);
}

void Memory::Commit(uint32_t word, int count, uint64_t value, int32_t agent, int32_t cta,
                    uint32_t issued) {
  Tick();
  CommitWord(word, static_cast<uint32_t>(value), agent, cta, issued);
  if (count == 2) CommitWord(word + 1, static_cast<uint32_t>(value >> 32), agent, cta, issued);
}

void Memory::Perform(int32_t index) {
  const Pending p = pending_[index];
  Remove(index);
  Commit(p.word, p.count, p.values[0] | static_cast<uint64_t>(p.values[1]) << 32, p.agent, p.cta,
         p.issued);
  Log(p.agent, 2, p.word, p.values[0]);
}

void Memory::PerformOne(bool slow) {
  const std::vector<int32_t>& list = lists_[slow ? 1 : 0];
  const int32_t chosen = list[random_->Below(static_cast<uint32_t>(list.size()))];
  int32_t first = CellOf(pending_[chosen].word).first;
  while (first != chosen && !Before(pending_[first], pending_[chosen])) {
    first = pending_[first].next;
  }
  Perform(first);
}

void Memory::PerformOldest(bool slow) {
  const std::vector<int32_t>& list = lists_[slow ? 1 : 0];
  int32_t oldest = list[0];
  for (int32_t p : list) {
    if (pending_[p].issued < pending_[oldest].issued) oldest = p;
  }
  Perform(oldest);
}

void Memory::DrainWord(Agent& agent, uint32_t word) {
  for (int32_t p = CellOf(word).first; p >= 0;) {
    const int32_t next = pending_[p].next;
    if (Visible(pending_[p], agent)) Perform(p);
    p = next;
  }
}

void Memory::Release(Agent& agent) {
  std::vector<int32_t> mine;
  for (const std::vector<int32_t>& list : lists_) {
    for (int32_t p : list) {
      if (Visible(pending_[p], agent)) mine.push_back(p);
    }
  }
  std::sort(mine.begin(), mine.end(),
            [this](int32_t a, int32_t b) { return pending_[a].issued < pending_[b].issued; });
  for (int32_t p : mine) Perform(p);
}

void Memory::DropGrid(int grid) {
  for (const std::vector<int32_t>& list : lists_) {
    for (size_t i = 0; i < list.size();) {
      pending_[list[i]].grid == grid ? Remove(list[i]) : void(++i);
    }
  }
}

bool Memory::NothingNew(const Agent& agent) const {
  for (const Agent::Seen& polled : agent.polled) {
    const Cell& cell = cells_[polled.word];
    if (cell.versions[cell.newest].time > polled.time) return false;
  }
  return true;
}

void Memory::AwaitChange(Agent& agent) {
  for (const Agent::Seen& polled : agent.polled) {
    CellOf(polled.word).waiters.push_back(agent.id);
  }
  agent.polled.clear();
}

}  // namespace stoker::testing::simt
