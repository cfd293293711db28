#include "offload/dispatch/call_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stoker::offload {
namespace {

using ::testing::ElementsAre;

// Two tiles of FC1 and one of FC2; chunk 0 gates FC1 tile 0, chunk 1 FC1 tile 1, chunk 2 FC2.
Task MakeTask(bool hit) { return {{2, 1, {{0}, {1}, {2}}}, {hit, hit, hit}}; }

// "task.phase.index" of every tile that can run now, each done at once.
std::vector<std::string> Drain(CallState* state) {
  std::vector<std::string> names;
  while (const auto tile = state->Next()) {
    names.push_back(std::to_string(tile->task) + "." + std::to_string(tile->phase) + "." +
                    std::to_string(tile->index));
    if (state->TileDone(*tile) == CallState::Progress::kFc1Done) state->StartFc2(tile->task);
  }
  return names;
}

void LoadAll(CallState* state, int task) {
  for (int chunk = 0; chunk < 3; ++chunk) state->ChunkArrived(task, chunk);
}

TEST(CallState, AllHitsRunInOrderAndFc2AfterTheLastFc1) {
  CallState state(Scheduler::kDynamic, {MakeTask(true), MakeTask(true)});
  EXPECT_THAT(Drain(&state), ElementsAre("0.1.0", "0.1.1", "1.1.0", "1.1.1", "0.2.0", "1.2.0"));
  EXPECT_TRUE(state.finished());
}

TEST(CallState, AllMissesRunChunkByChunkInArrivalOrder) {
  CallState state(Scheduler::kDynamic, {MakeTask(false), MakeTask(false)});
  EXPECT_THAT(Drain(&state), ElementsAre());
  state.ChunkArrived(1, 1);
  EXPECT_THAT(Drain(&state), ElementsAre("1.1.1"));
  state.ChunkArrived(1, 2);
  EXPECT_THAT(Drain(&state), ElementsAre()) << "FC2 before FC1";
  state.ChunkArrived(0, 0);
  state.ChunkArrived(1, 0);
  EXPECT_THAT(Drain(&state), ElementsAre("0.1.0", "1.1.0", "1.2.0"));
  EXPECT_FALSE(state.finished());
  state.ChunkArrived(0, 1);
  state.ChunkArrived(0, 2);
  EXPECT_THAT(Drain(&state), ElementsAre("0.1.1", "0.2.0"));
  EXPECT_TRUE(state.finished());
}

TEST(CallState, HitsDoNotWaitBehindAMissWithALowerIndex) {
  CallState state(Scheduler::kDynamic, {MakeTask(false), MakeTask(true)});
  EXPECT_THAT(Drain(&state), ElementsAre("1.1.0", "1.1.1", "1.2.0"));
  LoadAll(&state, 0);
  EXPECT_THAT(Drain(&state), ElementsAre("0.1.0", "0.1.1", "0.2.0"));
}

TEST(CallState, ATileWaitsForAllOfItsChunks) {
  // Gate, up and scales of the only FC1 tile.
  CallState state(Scheduler::kDynamic,
                  {{{1, 1, {{0}, {0}, {0}, {1}}}, {false, false, false, false}}});
  state.ChunkArrived(0, 3);
  state.ChunkArrived(0, 0);
  state.ChunkArrived(0, 2);
  EXPECT_THAT(Drain(&state), ElementsAre());
  state.ChunkArrived(0, 1);
  EXPECT_THAT(Drain(&state), ElementsAre("0.1.0", "0.2.0"));
  EXPECT_TRUE(state.finished());
}

TEST(CallState, AChunkReportedTwiceCountsOnce) {
  CallState state(Scheduler::kDynamic, {MakeTask(false)});
  state.ChunkArrived(0, 0);
  state.ChunkArrived(0, 0);
  EXPECT_THAT(Drain(&state), ElementsAre("0.1.0"));
  CallState whole(Scheduler::kIndexOrder, {MakeTask(false)});
  for (int report = 0; report < 3; ++report) whole.ChunkArrived(0, 0);
  EXPECT_THAT(Drain(&whole), ElementsAre()) << "two chunks are missing";
}

TEST(CallState, AFailedCallHandsOutNothingAndWaitsForWhatRuns) {
  CallState state(Scheduler::kDynamic, {MakeTask(true)});
  const auto running = state.Next();
  ASSERT_TRUE(running);
  state.Fail();
  EXPECT_FALSE(state.Next());
  EXPECT_FALSE(state.finished());
  state.TileDone(*running);
  EXPECT_TRUE(state.finished());
}

TEST(CallState, ATaskWithoutChunksIsAHit) {
  for (const Scheduler scheduler : {Scheduler::kDynamic, Scheduler::kIndexOrder,
                                    Scheduler::kReadyFirstOnce, Scheduler::kLoadAllThenCompute}) {
    CallState state(scheduler, {{{2, 1, {}}, {}}});
    EXPECT_THAT(Drain(&state), ElementsAre("0.1.0", "0.1.1", "0.2.0"));
    EXPECT_TRUE(state.finished());
  }
}

TEST(CallState, NoTasksIsFinished) { EXPECT_TRUE(CallState(Scheduler::kDynamic, {}).finished()); }

TEST(Baselines, IndexOrderWaitsAtItsHead) {
  CallState state(Scheduler::kIndexOrder, {MakeTask(false), MakeTask(true)});
  EXPECT_THAT(Drain(&state), ElementsAre());
  LoadAll(&state, 0);
  EXPECT_THAT(Drain(&state), ElementsAre("0.1.0", "0.1.1", "1.1.0", "1.1.1", "0.2.0", "1.2.0"));
}

TEST(Baselines, ReadyFirstOnceTakesTheOrderOfTheStart) {
  CallState state(Scheduler::kReadyFirstOnce, {MakeTask(false), MakeTask(false), MakeTask(true)});
  EXPECT_THAT(Drain(&state), ElementsAre("2.1.0", "2.1.1"));
  LoadAll(&state, 1);
  EXPECT_THAT(Drain(&state), ElementsAre()) << "task 1 does not move up";
  LoadAll(&state, 0);
  EXPECT_THAT(Drain(&state),
              ElementsAre("0.1.0", "0.1.1", "1.1.0", "1.1.1", "2.2.0", "0.2.0", "1.2.0"));
}

TEST(Baselines, LoadAllThenComputeStartsWithTheLastChunk) {
  CallState state(Scheduler::kLoadAllThenCompute, {MakeTask(true), MakeTask(false)});
  state.ChunkArrived(1, 0);
  state.ChunkArrived(1, 1);
  EXPECT_THAT(Drain(&state), ElementsAre());
  state.ChunkArrived(1, 2);
  EXPECT_THAT(Drain(&state), ElementsAre("0.1.0", "0.1.1", "1.1.0", "1.1.1", "0.2.0", "1.2.0"));
}

}  // namespace
}  // namespace stoker::offload
