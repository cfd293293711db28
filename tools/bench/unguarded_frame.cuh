// A launch without what makes it safe: no header, ticket, deadline, abort word or report. It leaves
// the group as the shipped frame (comm/launch_frame.h) does, so that both can run in one group.
#pragma once

#include <climits>

#include "comm/cuda_environment.cuh"
#include "comm/exchange_params.h"
#include "comm/launch_frame.h"

namespace stoker::bench {

// Polls until the end of time.
struct UnguardedEnvironment : comm::CudaEnvironment {
  static constexpr int kPollsPerLook = INT_MAX;
  __device__ void ArriveRows() {}
  __device__ void RaiseTrouble() {}
};

// All warps gather: without headers and tickets there is nothing for a service warp to do, but the
// shape stays the shipped kernel's, so that only the guards differ.
template <class Exchange, int kVectors, class Producer, class Epilogue>
__device__ __forceinline__ void RunUnguarded(const comm::ExchangeParams& p, Producer& producer,
                                             Epilogue& epilogue) {
  UnguardedEnvironment env;
  if (env.thread() == 0) env.InitPartials();
  env.ClusterArrive();
  const comm::Vectors<kVectors> vectors = comm::OwnVectors<kVectors>(env, p.packets);
  const comm::Tokens tokens = comm::OwnTokens(env, p.tokens);
  const bool service = env.warp() == vectors.row_warps;
  env.GridDependencyWait();
  if (!service && tokens.first < tokens.end) producer.Fetch(env, tokens.first);
  comm::Control* control = comm::ControlOf(p.workspace[p.rank]);
  uint32_t epoch = env.lane() == 0 ? env.LoadWord(&control->epoch) : 0u;
  comm::Launch launch{env.Shuffle(epoch, 0), false};
  env.ClusterWait();
  if (!service && tokens.first < tokens.end) {
    Exchange::Rows(env, p, launch, tokens, vectors, producer, epilogue);
  }
  if (!service) env.LaunchDependents();
  env.SyncBlock();
  if (!service || env.lane() != 0) return;
  const uint32_t ctas = static_cast<uint32_t>(env.ctas());
  if (env.AtomicAdd(&control->started, 1u) != ctas - 1u) return;
  env.StoreWord(&control->started, 0u);
  env.StoreWord(&control->epoch, launch.epoch + 1u);
  // The peers' headers of this epoch, which were not sent, and the arrivals.
  for (int r = 0; r < p.layout.world; ++r) {
    comm::Header* slot =
        comm::HeadersOf(p.workspace[p.rank]) + comm::WorkspaceLayout::header_index(launch.epoch, r);
    env.StoreHeader(&slot->tokens, comm::HeaderWord(launch.epoch, 0));
    env.StoreHeader(&slot->signature, comm::HeaderWord(launch.epoch, 0));
  }
  env.StoreWord(&control->finished[launch.epoch & 1u], ctas);
  env.StoreWord(&control->finished[(launch.epoch + 1u) & 1u], 0u);
  env.StoreWord(&control->last_ctas, ctas);
}

}  // namespace stoker::bench
