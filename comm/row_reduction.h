// The sum of one number a vector over a row that a cluster holds, in an order that depends on
// nothing but the row: every 32 consecutive vectors are a canonical warp, summed by a halving tree
// of distances 16, 8, 4, 2, 1; the canonical warps' partials, padded with +0 to a power of two, are
// summed by the same tree. Which CTA and thread holds a vector does not matter, so a token's bits
// are the same for every launch shape and number of tokens.
#pragma once

#include "comm/environment.h"
#include "comm/failure_path.h"

namespace stoker::comm {

template <class Env>
STOKER_DEVICE float SumOverWarp(Env env, float value) {
  // Addition commutes bit for bit, so after the exchange both partners hold the tree's value.
  for (int distance = 16; distance > 0; distance >>= 1)
    value = value + env.ShuffleXor(value, distance);
  return value;
}

// The CTAs of a cluster meet; what each stored before is seen by all after.
template <class Env>
STOKER_DEVICE void MeetCluster(Env env) {
  if (env.cluster_size() > 1) {
    env.ClusterArrive();
    env.ClusterWait();
  } else {
    env.SyncBlock();
  }
}

// Row thread i of the cluster holds vectors i, i + n, i + 2n, ... of the row, n the cluster's row
// threads; `values[v]` belongs to the v-th of them and is +0 beyond the row. All row threads of the
// cluster call it and get the sum, while all others of the cluster call MeetCluster. `parity`
// alternates from one call to the next: a fast CTA may store the next row's partials while a slow
// one still reads this row's, but it cannot be two rows ahead, because the meeting between needs
// every thread.
template <int kVectors, class Env>
STOKER_DEVICE float SumOverRow(Env env, const float (&values)[kVectors], int row_warps_per_cta,
                               int packets, int parity) {
  float* partials = env.SharedPartials() + parity * kPartialsMax;
  const int row_warps = env.cluster_size() * row_warps_per_cta;
  const int own_warp = env.cluster_rank() * row_warps_per_cta + env.warp();
  const int canonical_warps = (packets + 31) / 32;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const float sum = SumOverWarp(env, values[v]);
    const int canonical = own_warp + v * row_warps;
    if (canonical < canonical_warps && env.lane() < env.cluster_size()) {
      env.StoreClusterShared(partials + canonical, env.lane(), sum);
    }
  }
  MeetCluster(env);
  const int lane = env.lane();
  float sum = lane < canonical_warps ? env.LoadShared(partials + lane) : 0.0f;
  if (canonical_warps > 32) {
    sum = sum + (lane + 32 < canonical_warps ? env.LoadShared(partials + lane + 32) : 0.0f);
  }
  return SumOverWarp(env, sum);
}

}  // namespace stoker::comm
