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

// Row thread i of the cluster holds vectors i, i + n, i + 2n, ... of the row, n the cluster's row
// threads; `values[v]` belongs to the v-th of them and is +0 beyond the row. All row threads of the
// cluster call it and get the sum. `turn` counts the calls of a launch from 0, and buffers
// alternate with it: a fast warp may send the next row's partials while a slow one still reads this
// row's, but it cannot be two rows ahead, because the sum between needs a partial of every warp.
template <int kVectors, class Env>
STOKER_DEVICE float SumOverRow(Env env, const float (&values)[kVectors], int row_warps_per_cta,
                               int packets, int turn) {
  const int slot = turn & 1;
  const bool alone = env.cluster_size() == 1;
  const int row_warps = env.cluster_size() * row_warps_per_cta;
  const int own_warp = env.cluster_rank() * row_warps_per_cta + env.warp();
  const int canonical_warps = (packets + 31) / 32;
  if (!alone && env.thread() == 0) env.ExpectPartials(slot, canonical_warps);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const float sum = SumOverWarp(env, values[v]);
    const int canonical = own_warp + v * row_warps;
    if (canonical < canonical_warps && env.lane() < env.cluster_size()) {
      if (alone) {
        env.StorePartial(slot, canonical, sum);
      } else {
        env.SendPartial(slot, canonical, env.lane(), sum);
      }
    }
  }
  if (alone) {
    env.SyncRows(row_warps_per_cta * 32);
  } else {
    env.AwaitPartials(slot, turn >> 1 & 1);
  }
  const int lane = env.lane();
  float sum = lane < canonical_warps ? env.LoadPartial(slot, lane) : 0.0f;
  if (canonical_warps > 32) {
    sum = sum + (lane + 32 < canonical_warps ? env.LoadPartial(slot, lane + 32) : 0.0f);
  }
  return SumOverWarp(env, sum);
}

}  // namespace stoker::comm
