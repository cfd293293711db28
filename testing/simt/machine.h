// The simulated machine: ranks with a stream each, grids of clusters of CTAs of warps of 32
// threads, every thread a fiber, and one scheduler that decides which thread goes on and which
// store is performed next. A schedule is a function of the program and the seed.
//
// A thread that polls and sees nothing new is blocked until what it polled changes, until a watched
// word changes or until the virtual clock advances, which it does only when nothing else can
// happen. So a hang is the state in which nothing can happen any more, and no matter of patience.
//
// What a body does wrong (a shuffle with a thread that has gone, a store to the shared memory of a
// CTA that has exited) ends the schedule with a message. Not thread-safe.
#pragma once

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/environment.h"
#include "comm/exchange_params.h"
#include "testing/inputs.h"
#include "testing/simt/memory.h"

namespace stoker::testing::simt {

inline constexpr int kWarpThreads = 32;

// One launch on a rank's stream.
struct GridSpec {
  comm::ExchangeParams params{};
  std::function<void()> body;  // what every thread runs
  int clusters = 1;
  int cluster_size = 1;
  int warps = 2;               // a CTA, service warp included
  uint64_t not_before_ns = 0;  // virtual time at which the host launches it
  uint64_t pause_ns = 0;       // of a body that pauses: from the first thread that does
  bool waits_for_last = true;  // a kernel that breaks the promise of programmatic launch does not
  bool second_stream = false;  // starts as soon as the one before has, whatever that one does
  bool host = false;  // what the host does meanwhile: lane 0 alone runs, GridWait drains the stream
  std::function<void()> after;  // on completion, before anything that depends on it runs

  int ctas() const { return clusters * cluster_size; }
};

struct Policy {
  Memory::Weakness memory;
  uint32_t switch_rate = 256;  // of 256: that a memory operation is a point to switch at
  uint32_t store_rate = 64;    // that a store is performed rather than a thread run
  uint32_t start_rate = 16;    // that a cluster starts
  uint32_t look_rate = 0;      // that a thread that would block looks at the clock first
  int levels = 1;              // random priorities of warps; 1 is uniform
  int change_points = 0;       // how often a warp's priority changes, over about 20,000 steps

  // Not null: no chance at all. Threads run in turn until they block, stores are performed at once,
  // and each choice in this ascending list is a delay: of a thread, behind all others, or of
  // stores, until nothing else can happen.
  const std::vector<int>* delays = nullptr;

  // A policy drawn from the seed: uniform or priorities, each with its own rates.
  static Policy Draw(Random& random);
};

struct Limits {
  int resident_ctas = 1 << 20;  // of a rank
  int ticks = 0;                // how often the clock may advance; 0: waiting for it is a hang
  uint64_t tick_ns = 10'000'000;
};

struct Thread;
struct Cta;
struct Cluster;
struct Grid;

class Machine {
 public:
  explicit Machine(int64_t arena_bytes);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  Memory& memory() { return memory_; }
  // Runs the streams (one a rank) to their end. Empty, or what went wrong first, with the state of
  // every thread that was not done.
  std::string Run(uint64_t seed, const Policy& policy, const Limits& limits,
                  const std::vector<std::vector<GridSpec>>& streams);
  // Calls `changed` in every later schedule when that word has changed: an onlooker on the host.
  void Watch(const void* word, std::function<void()> changed) {
    watchers_.push_back({memory_.Word(word), std::move(changed)});
  }
  uint64_t clock_ns() const { return clock_ns_; }
  int64_t steps() const { return steps_; }
  int choices() const { return choices_; }  // where a delay was possible
  bool hung() const { return hung_; }

  // For the environment, on the running thread (simt::Running()).
  // Here the scheduler may switch; the operation that follows makes so many stores. `shared` is
  // false for memory that no other thread looks at in a launch that works.
  void Point(int stores = 0, bool shared = true);
  void GridWait();
  void LaunchDependents();
  void Meet(int barrier, int threads, bool wait, const char* what);
  void ClusterArrive();
  void ClusterWait();
  uint32_t Exchange(uint32_t value, int lane, bool any, const char* what);
  void Await();
  // Until the grid's pause is over.
  void Pause();
  // Of the hosts of all ranks.
  void MeetHosts();
  uint32_t Draw(uint32_t bound) { return random_.Below(bound); }
  void InitPartials();
  void ExpectPartials(int slot, int count);
  void SendPartial(int slot, int index, int cta, float value);
  void AwaitPartials(int slot, int phase);
  float& Partial(int slot, int index, int cta_in_cluster);
  bool& Trouble();
  [[noreturn]] void ExitThread();
  void Wrong(const std::string& what);

 private:
  struct Rank;
  struct Watcher {
    uint32_t word;
    std::function<void()> changed;
  };
  struct Partial_ {
    Cta* cta;
    int slot, index;
    float value;
  };

  void Loop();
  void LoopInTurn();
  void HearOfChanges();
  bool Delayed();
  bool StartOne();
  void StartCluster(Grid& grid);
  void Resume(Thread* thread);
  void SwitchOut();
  void Block(const char* what);
  void MakeRunnable(Thread* thread);
  Thread* TakeRunnable();
  void WakePollers(int rank, bool look);
  void DeliverPartial();
  void Settle(Cta& cta, int slot);
  void ThreadDone(Thread* thread);
  void CheckBarriers(const Cta& cta);
  void CompleteGrids();
  bool Tick();
  int LevelOf(const Thread& thread);
  std::string Dump() const;
  Thread* NewThread();

  Memory memory_;
  Random random_{1};
  Policy policy_;
  Limits limits_;
  uint64_t clock_ns_ = 0;
  int ticks_ = 0;
  int64_t steps_ = 0;
  int choices_ = 0;
  size_t delays_done_ = 0;
  std::deque<Thread*> queue_;  // in turn, where nothing is left to chance
  bool hung_ = false;
  bool stopped_ = false;  // an abort word has been set
  std::string wrong_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::unique_ptr<Grid>> grids_;
  std::vector<std::unique_ptr<Cta>> ctas_;
  std::vector<std::unique_ptr<Cluster>> clusters_;
  std::vector<std::unique_ptr<Thread>> pool_;
  std::vector<Thread*> idle_;
  std::vector<Thread*> threads_;  // of the schedule, by agent id
  std::vector<std::vector<Thread*>> runnable_;
  std::vector<uint8_t> level_of_warp_;
  std::vector<Partial_> partials_;
  std::vector<Watcher> watchers_;
  std::vector<Thread*> hosts_;  // that wait for the others
  boost::context::fiber scheduler_;
  int undone_ = 0;  // grids
  int next_cta_ = 0;
};

struct Thread {
  boost::context::fiber fiber;
  Agent agent;
  Cta* cta = nullptr;
  int index = 0;  // within the CTA
  bool runnable = false;
  bool done = false;
  bool left = false;  // in the middle of its body
  bool polling = false;
  bool look = false;  // the next poll that finds nothing looks at the clock
  const char* blocked = nullptr;
  uint32_t exchanged = 0;

  int lane() const { return index % kWarpThreads; }
  int warp() const { return index / kWarpThreads; }
};

struct Barrier {
  int arrived = 0, needed = 0;
  std::vector<Thread*> waiting;
};

struct Warp {
  int arrived = 0;
  const char* what = nullptr;
  uint32_t values[kWarpThreads];
  int sources[kWarpThreads];
};

struct Cta {
  int id = 0;
  Grid* grid = nullptr;
  Cluster* cluster = nullptr;
  int index = 0;  // within the grid
  int undone = 0;
  bool triggered = false, initialised = false, exited = false;
  std::vector<Thread*> threads;
  std::vector<Warp> warps;
  Barrier barriers[4];
  bool trouble = false;
  float partials[2][comm::kPartialsMax];
  struct Transaction {
    int pending = 1, expected = 0, phase = 0;
    std::vector<Thread*> waiting;
  } transactions[2];
};

struct Cluster {
  Grid* grid = nullptr;
  int index = 0;
  int arrived = 0;
  std::vector<Cta*> ctas;
  std::vector<Thread*> waiting;
};

struct Grid {
  const GridSpec* spec = nullptr;
  Grid* before = nullptr;
  int id = 0, rank = 0, number = 0;
  int started = 0;  // clusters
  std::vector<int> order;
  int ctas_left = 0, triggered = 0;
  bool complete = false;
  uint64_t resume_ns = 0;        // when its pause is over; 0: it has not begun
  std::vector<Thread*> waiting;  // for `before`
};

// The thread that the environment works for.
Thread*& Running();
Machine*& TheMachine();

}  // namespace stoker::testing::simt
