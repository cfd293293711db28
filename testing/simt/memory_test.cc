// Litmus tests of the simulated memory: what must be seen in some schedule, and what in none.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "testing/simt/environment.h"
#include "testing/simt/machine.h"

namespace stoker::testing::simt {
namespace {

// Two ranks of one CTA with one warp each; lane 0 runs the test's code, and lane 1 if it wants to.
class Litmus : public ::testing::Test {
 protected:
  static constexpr int kSeeds = 1500;

  uint32_t* Word(int i) { return reinterpret_cast<uint32_t*>(machine_.memory().base() + 4096) + i; }

  // In how many of the schedules `seen` was true at the end. `bodies` by rank.
  int Count(const std::vector<std::function<void(int lane)>>& bodies,
            const std::function<bool()>& seen, int launches = 1) {
    int count = 0;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      std::fill_n(machine_.memory().base(), machine_.memory().bytes(), 0);
      std::fill(std::begin(r_), std::end(r_), 0u);
      std::vector<std::vector<GridSpec>> streams(bodies.size());
      for (size_t rank = 0; rank < bodies.size(); ++rank) {
        for (int launch = 0; launch < launches; ++launch) {
          GridSpec grid;
          grid.warps = 1;
          grid.params.rank = static_cast<int>(rank);
          grid.params.workspace[rank] = machine_.memory().base() + 1024 * rank;
          grid.body = [body = &bodies[rank], launch] {
            if (env_.lane() < 2) (*body)(2 * launch + env_.lane());
          };
          streams[rank].push_back(grid);
        }
      }
      Random random(seed);
      const std::string wrong = machine_.Run(seed, Policy::Draw(random), Limits(), streams);
      EXPECT_EQ(wrong, "");
      count += seen();
    }
    return count;
  }

  // Registers that bodies write and the test reads.
  uint32_t r_[4];
  static inline SimtEnvironment env_;
  Machine machine_{1 << 16};
};

TEST_F(Litmus, RelaxedStoresAreSeenInAnyOrder) {
  const auto write = [&](int lane) {
    if (lane != 0) return;
    env_.StoreWord(Word(0), 1);
    env_.StoreWord(Word(1), 1);
  };
  const auto read = [&](int lane) {
    if (lane != 0) return;
    r_[1] = env_.LoadWord(Word(1));
    env_.FenceSystem();
    r_[0] = env_.LoadWord(Word(0));
  };
  EXPECT_GT(Count({write, read}, [&] { return r_[1] == 1 && r_[0] == 0; }), 0);
}

TEST_F(Litmus, LoadsAreDoneInAnyOrder) {
  const auto write = [&](int lane) {
    if (lane != 0) return;
    env_.StoreWord(Word(0), 1);
    env_.FenceSystem();
    env_.StoreWord(Word(1), 1);
  };
  const auto read = [&](int lane) {
    if (lane != 0) return;
    r_[1] = env_.LoadWord(Word(1));
    r_[0] = env_.LoadWord(Word(0));
  };
  EXPECT_GT(Count({write, read}, [&] { return r_[1] == 1 && r_[0] == 0; }), 0);
}

TEST_F(Litmus, FencesOnBothSidesPassAMessage) {
  const auto write = [&](int lane) {
    if (lane != 0) return;
    env_.StoreWord(Word(0), 1);
    env_.FenceSystem();
    env_.StoreWord(Word(1), 1);
  };
  const auto read = [&](int lane) {
    if (lane != 0) return;
    r_[1] = env_.LoadWord(Word(1));
    env_.FenceSystem();
    r_[0] = env_.LoadWord(Word(0));
  };
  EXPECT_EQ(Count({write, read}, [&] { return r_[1] == 1 && r_[0] == 0; }), 0);
  EXPECT_GT(Count({write, read}, [&] { return r_[1] == 1; }), 0);
}

TEST_F(Litmus, AStoreWaitsBehindALaterLoad) {
  const auto side = [&](int own) {
    return [this, own](int lane) {
      if (lane != 0) return;
      env_.StoreWord(Word(own), 1);
      r_[own] = env_.LoadWord(Word(1 - own));
    };
  };
  EXPECT_GT(Count({side(0), side(1)}, [&] { return r_[0] == 0 && r_[1] == 0; }), 0);
}

TEST_F(Litmus, AFenceBetweenThemMakesItPerformed) {
  const auto side = [&](int own) {
    return [this, own](int lane) {
      if (lane != 0) return;
      env_.StoreWord(Word(own), 1);
      env_.FenceSystem();
      r_[own] = env_.LoadWord(Word(1 - own));
    };
  };
  EXPECT_EQ(Count({side(0), side(1)}, [&] { return r_[0] == 0 && r_[1] == 0; }), 0);
}

TEST_F(Litmus, OneWordNeverGoesBack) {
  const auto write = [&](int lane) {
    if (lane != 0) return;
    for (uint32_t v = 1; v <= 3; ++v) env_.StoreWord(Word(0), v);
  };
  const auto read = [&](int lane) {
    if (lane != 0) return;
    r_[0] = env_.LoadWord(Word(0));
    r_[1] = env_.LoadWord(Word(0));
  };
  EXPECT_EQ(Count({write, read}, [&] { return r_[1] < r_[0] || *Word(0) != 3; }), 0);
  EXPECT_GT(Count({write, read}, [&] { return r_[1] > r_[0]; }), 0);
}

TEST_F(Litmus, WeakLoadsGoBack) {
  const auto write = [&](int lane) {
    if (lane == 0) env_.StoreWord(Word(0), 1);
  };
  const auto read = [&](int lane) {
    if (lane != 0) return;
    for (int i = 0; i < 8; ++i) {
      const uint32_t value = env_.LoadInput32(Word(0));
      if (r_[0] == 1 && value == 0) r_[1] = 1;
      r_[0] = value;
      env_.LoadWord(Word(8));
    }
  };
  EXPECT_GT(Count({write, read}, [&] { return r_[1] == 1; }), 0);
}

TEST_F(Litmus, APacketIsTornAndAHeaderIsNot) {
  auto* packet = reinterpret_cast<comm::Packet*>(Word(16));
  auto* header = reinterpret_cast<uint64_t*>(Word(32));
  const auto write = [&](int lane) {
    if (lane != 0) return;
    env_.StorePacket(packet, comm::Packet{{1, 1, 1, 1}});
    env_.StoreHeader(header, 0x100000001u);
  };
  const auto read = [&](int lane) {
    if (lane != 0) return;
    const comm::Packet seen = env_.LoadPacket(packet);
    r_[0] = seen.word[0] + seen.word[1] + seen.word[2] + seen.word[3];
    const uint64_t word = env_.LoadHeader(header);
    r_[1] = static_cast<uint32_t>(word >> 32) + static_cast<uint32_t>(word);
  };
  for (uint32_t words : {1u, 2u, 3u}) {
    EXPECT_GT(Count({write, read}, [&] { return r_[0] == words; }), 0);
  }
  EXPECT_EQ(Count({write, read}, [&] { return r_[1] == 1; }), 0);
  EXPECT_GT(Count({write, read}, [&] { return r_[1] == 2; }), 0);
}

TEST_F(Litmus, ABarrierAndOneFencePublishWhatTheCtaStored) {
  const auto write = [&](int lane) {
    if (lane == 0) env_.StoreWord(Word(0), 1);
    TheMachine()->Meet(1, 2, true, "barrier");
    if (lane != 1) return;
    r_[2] = env_.LoadWord(Word(0));
    env_.FenceSystem();
    env_.StoreWord(Word(1), 1);
  };
  const auto read = [&](int lane) {
    if (lane != 0) return;
    r_[1] = env_.LoadWord(Word(1));
    env_.FenceSystem();
    r_[0] = env_.LoadWord(Word(0));
  };
  EXPECT_EQ(Count({write, read}, [&] { return r_[2] != 1 || (r_[1] == 1 && r_[0] == 0); }), 0);
}

TEST_F(Litmus, AGridSeesAllOfTheGridThatItWaitedFor) {
  const auto body = [&](int lane) {
    if (lane == 0) {
      TheMachine()->LaunchDependents();
      env_.StoreWord(Word(0), 1);
    }
    if (lane == 2) {
      r_[1] = env_.LoadWord(Word(0));
      env_.GridDependencyWait();
      r_[0] = env_.LoadWord(Word(0));
    }
  };
  EXPECT_EQ(Count(
                {body}, [&] { return r_[0] != 1; }, 2),
            0);
  EXPECT_GT(Count(
                {body}, [&] { return r_[1] == 0; }, 2),
            0);  // it had started before
}

TEST_F(Litmus, AShuffleWithoutALaneIsAnError) {
  std::vector<std::vector<GridSpec>> streams(1);
  GridSpec grid;
  grid.warps = 1;
  grid.params.workspace[0] = machine_.memory().base();
  grid.body = [] {
    if (env_.lane() == 3) return;
    for (int i = 0; i < 4; ++i)
      env_.LoadWord(reinterpret_cast<uint32_t*>(TheMachine()->memory().base()));
    env_.Shuffle(1, 0);
  };
  streams[0].push_back(grid);
  const std::string wrong = machine_.Run(3, Policy(), Limits(), streams);
  EXPECT_NE(wrong, "");
}

}  // namespace
}  // namespace stoker::testing::simt
