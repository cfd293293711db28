// The memory of the simulated machine: weaker than that of any GPU in the ways that are listed in
// docs/decisions/simulator.md, and nowhere stronger where a body could notice by mistake.
//
// All of it is one arena, cut into 32-bit words. A store waits in a buffer until it is performed;
// stores of one thread to different words are performed in any order, also the four words of a
// packet. A word remembers what it held: a load may return any value since the thread last
// synchronised, but two relaxed loads of one word by one thread never go back in time. What is
// performed is seen by all at once.
//
// Not thread-safe; one schedule at a time (Begin).
#pragma once

#include <cstdint>
#include <vector>

#include "testing/inputs.h"

namespace stoker::testing::simt {

// What the memory knows of a thread.
struct Agent {
  int32_t id = -1;
  int32_t cta = -1;
  int32_t grid = -1;
  uint32_t started = 0;
  uint32_t floor = 0;    // its loads return nothing that was overwritten before
  uint32_t barrier = 0;  // stores of its CTA issued before come before its own
  struct Seen {
    uint32_t word, time;
  };
  std::vector<Seen> seen;    // the newest version of words that it has read, if newer than `floor`
  std::vector<Seen> polled;  // what it has loaded since it last waited

  void Synchronise(uint32_t now) {
    floor = now;
    seen.clear();
  }
};

class Memory {
 public:
  // How a schedule bends the rules; chances are of 256.
  struct Weakness {
    uint32_t stale = 0;       // that a load returns an old value where there is one
    uint32_t slow_store = 0;  // that a store is performed only when nothing else can happen
  };
  static constexpr uint32_t kNobody = 0xFFFFFFFFu;

  explicit Memory(int64_t bytes);

  char* base() { return reinterpret_cast<char*>(arena_.data()); }
  int64_t bytes() const { return static_cast<int64_t>(arena_.size() * 4); }
  // Forgets all buffers and histories; the arena holds what the host has written into it.
  void Begin(const Weakness& weakness, Random* random);

  uint32_t Word(const void* p) const;
  // `count` words at once: 1, or 2 for a 64-bit access. Weak loads remember nothing.
  void Load(Agent& agent, uint32_t word, int count, bool weak, uint32_t* values);
  void Store(Agent& agent, uint32_t word, int count, const uint32_t* values);
  // Read-modify-write at home: returns what was there and stores what `change` makes of it.
  template <class Change>
  uint64_t Update(Agent& agent, uint32_t word, int count, Change change) {
    DrainWord(agent, word);
    const uint64_t old = Newest(word, count);
    uint64_t changed = old;
    if (change(changed)) Commit(word, count, changed, agent.id, agent.cta, now_);
    agent.seen.push_back({word, now_});
    Log(agent.id, 3, word, static_cast<uint32_t>(old));
    return old;
  }
  // What the host stores, between two launches that see it.
  void HostStore(uint32_t word, uint32_t value) { Commit(word, 1, value, -1, -1, now_); }
  // Performs what the thread has stored, and what its CTA stored before its last barrier.
  void Release(Agent& agent);
  // The same, and its loads return nothing older than this.
  void Fence(Agent& agent) {
    Release(agent);
    agent.Synchronise(now_);
  }

  bool has_fast() const { return !lists_[0].empty(); }
  bool has_slow() const { return !lists_[1].empty(); }
  void PerformOne(bool slow);
  // The one that was stored first.
  void PerformOldest(bool slow);
  // Makes the next stores slow whose bits are set, the first one's the lowest.
  void DelayNext(uint32_t mask) { delay_mask_ = mask; }
  // Stores of a grid that are not performed yet.
  int pending_of(int grid) const { return grid_pending_[grid]; }
  // Drops them: their rank has died.
  void DropGrid(int grid);

  // True if every word that the agent polled still holds what it saw.
  bool NothingNew(const Agent& agent) const;
  // Registers the thread as waiting for a change of what it polled.
  void AwaitChange(Agent& agent);
  // Threads whose words have changed since this was last called; the caller clears it.
  std::vector<int32_t>& woken() { return woken_; }
  // Words that wake more than who polled them (abort words): appended to when one changes.
  void Watch(uint32_t word) { CellOf(word).watched = true; }
  std::vector<uint32_t>& watched_changes() { return watched_changes_; }

  uint32_t now() const { return now_; }
  uint32_t Tick() { return ++now_; }
  // Of the order of all memory operations.
  uint64_t schedule_hash() const { return hash_; }
  // Of the orders within each word: equal for schedules that differ only in the order of operations
  // on different words.
  uint64_t class_hash() const;
  int64_t operations() const { return operations_; }

 private:
  struct Version {
    uint32_t time, value, issued;
    int32_t agent, cta;
  };
  static constexpr int kVersions = 4;
  struct Cell {
    uint64_t schedule = 0;
    Version versions[kVersions];  // the newest at [newest]
    int newest = 0, count = 0;
    int32_t first = -1;  // pending stores, in order of issue
    bool watched = false;
    uint64_t hash = 0;
    std::vector<int32_t> waiters;
  };
  struct Pending {
    uint32_t word, values[2], issued, barrier;
    int32_t count, agent, cta, grid;
    int32_t next;      // of the word
    int32_t list, at;  // where it stands in lists_
  };

  Cell& CellOf(uint32_t word) {
    Cell& cell = cells_[word];
    if (cell.schedule != schedule_) Touch(word);
    return cell;
  }
  void Touch(uint32_t word);  // for the first time in this schedule
  const Version& NewestOf(uint32_t word) { return CellOf(word).versions[CellOf(word).newest]; }
  uint64_t Newest(uint32_t word, int count);
  uint32_t ValueAt(uint32_t word, uint32_t time);
  void Commit(uint32_t word, int count, uint64_t value, int32_t agent, int32_t cta,
              uint32_t issued);
  void CommitWord(uint32_t word, uint32_t value, int32_t agent, int32_t cta, uint32_t issued);
  void Perform(int32_t pending);
  void Remove(int32_t pending);
  void DrainWord(Agent& agent, uint32_t word);
  bool Before(const Pending& a, const Pending& b) const {
    return a.agent == b.agent || (a.cta == b.cta && a.issued < b.barrier);
  }
  bool Visible(const Pending& p, const Agent& agent) const {
    return p.agent == agent.id || (p.cta == agent.cta && p.issued < agent.barrier);
  }
  bool Visible(const Version& v, const Agent& agent) const {
    return v.agent == agent.id || (v.cta == agent.cta && v.issued < agent.barrier);
  }
  void Log(int32_t agent, uint32_t kind, uint32_t word, uint32_t value);

  std::vector<uint32_t> arena_;
  std::vector<Cell> cells_;
  std::vector<Pending> pending_;
  std::vector<int32_t> free_;
  std::vector<int32_t> lists_[2];  // fast and slow
  std::vector<int> grid_pending_;
  std::vector<int32_t> woken_;
  std::vector<uint32_t> watched_changes_;
  std::vector<uint32_t> touched_;
  Weakness weakness_;
  Random* random_ = nullptr;
  uint64_t schedule_ = 0;
  uint32_t delay_mask_ = 0;
  uint32_t now_ = 1;
  uint64_t hash_ = 0;
  int64_t operations_ = 0;
};

}  // namespace stoker::testing::simt
