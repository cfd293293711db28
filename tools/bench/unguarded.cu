#include <climits>

#include "comm/cuda_environment.cuh"
#include "comm/exchange_params.h"
#include "comm/launch_frame.h"
#include "comm/one_shot.h"
#include "comm/two_shot.h"
#include "moe/kernel_entry.cuh"
#include "tools/bench/unguarded.h"

namespace stoker::bench {
namespace {

// Polls until the end of time.
struct UnguardedEnvironment : comm::CudaEnvironment {
  static constexpr int kPollsPerLook = INT_MAX;
  __device__ void ArriveRows() {}
  __device__ void RaiseTrouble() {}
};

// All warps gather: without headers and tickets there is nothing for a service warp to do, but the
// shape stays the shipped kernel's, so that only the guards differ.
template <template <class, int> class Exchange, int kRanks, int kVectors>
__global__ void __launch_bounds__(moe::kThreadsMax, 1)
    UnguardedKernel(const __grid_constant__ comm::ExchangeParams p,
                    const __grid_constant__ moe::FinalizeParams producer_params,
                    const __grid_constant__ moe::RmsNormParams epilogue_params) {
  UnguardedEnvironment env;
  moe::FinalizeProducer<comm::Bf16> producer(producer_params);
  moe::RmsNormEpilogue<comm::Bf16, kVectors> epilogue(epilogue_params);
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
    Exchange<comm::Bf16, kRanks>::Rows(env, p, launch, tokens, vectors, producer, epilogue);
  }
  if (!service) env.LaunchDependents();
  env.SyncBlock();
  if (!service || env.lane() != 0) return;
  const uint32_t ctas = static_cast<uint32_t>(env.ctas());
  if (env.AtomicAdd(&control->started, 1u) != ctas - 1u) return;
  env.StoreWord(&control->started, 0u);
  env.StoreWord(&control->epoch, launch.epoch + 1u);
  // As the shipped kernel leaves them, so that both can run in one group: the peers' headers of
  // this epoch, which were not sent, and the arrivals.
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

template <template <class, int> class Exchange, int kRanks>
const void* KernelOf(int vectors) {
  switch (vectors) {
    case 1:
      return reinterpret_cast<const void*>(UnguardedKernel<Exchange, kRanks, 1>);
    case 2:
      return reinterpret_cast<const void*>(UnguardedKernel<Exchange, kRanks, 2>);
    default:
      return nullptr;
  }
}

}  // namespace

const void* UnguardedFinalizeKernel(comm::Protocol protocol, int world, int vectors) {
  if (world > 4) return nullptr;
  if (protocol == comm::Protocol::kTwoShot) return KernelOf<comm::TwoShot, 4>(vectors);
  return world <= 2 ? KernelOf<comm::OneShot, 2>(vectors) : KernelOf<comm::OneShot, 4>(vectors);
}

}  // namespace stoker::bench
