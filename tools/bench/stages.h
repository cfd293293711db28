// The fused one-shot launch cut off behind each of its parts: what one part costs is the difference
// between two neighbours. The parts are those of the row's way through the launch, without the
// guards (tools/bench/unguarded_frame.cuh), which run beside it: what they add to the whole is the
// shipped launch less the last part. All take the parameters of the shipped kernel
// (moe::LaunchOptions::kernel) and leave a group as they found it, so they run in turns with it.
#pragma once

namespace stoker::bench {

enum class Stage {
  kEdge,       // waits for the launch before, lets the next one go
  kEpoch,      // ... reads the epoch, meets its cluster, advances the epoch
  kGather,     // ... indices and weights, then rows, summed
  kPush,       // ... the row to every peer, as empty words: nobody polls
  kPoll,       // ... the row itself, and the peers' rows awaited and summed
  kReduction,  // ... the sum of squares over the row
  kEpilogue,   // ... residual, gamma, both outputs: all but the guards
  // Everything but data, guards included: one packet to every peer, one from each, the reduction.
  // For a launch of hidden 8, with the launch shape of the row it stands for.
  kFloor,
};
inline constexpr Stage kStages[] = {Stage::kEdge, Stage::kEpoch,     Stage::kGather,  Stage::kPush,
                                    Stage::kPoll, Stage::kReduction, Stage::kEpilogue};

const char* StageName(Stage stage);

// bf16, one vector a thread; null for more than eight ranks.
const void* StageKernel(Stage stage, int world);

}  // namespace stoker::bench
