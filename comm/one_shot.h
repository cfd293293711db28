// One-shot exchange: every rank pushes its row of every token into every peer's mailbox, polls its
// own mailbox for the peers' rows, and sums them in rank order in FP32. One cluster works on one
// token at a time; a row thread owns the same vectors (16-byte packets) of each. The last warp of a
// CTA is no row warp but the service warp: in CTA 0 it exchanges the headers while the others
// gather, and in every CTA it does the launch's bookkeeping, so that none of this stands in the way
// of a row.
//
// The body knows packets, ranks and epochs. What a row means is the producer's business and what
// happens to the sum the epilogue's; row threads call
//
//   Producer: Fetch(env, token)               begin loading what Row needs
//             Row(env, token, vectors, rows)  this rank's row, rounded to the wire type
//             bad_token(), bad_detail(env)    a token whose inputs this thread found bad, or -1
//   Epilogue: Fetch(env, token, vectors)      begin loading what Take needs
//             Take(env, token, vectors, v, sums)  the sum of the thread's v-th vector
//             Finish(env, token, vectors, turn) all vectors of the row have been taken
// and the service warp
//             FillNan(env)                    all outputs of all tokens
//
// Before the launch: the mailbox holds sentinels and the headers hold epochs e - 2, or this rank's
// earlier launches have run. After it: the same, and the epoch is one higher.
//
// Why no word is overwritten before it was read, and none is read before it was written (the proof
// is docs/decisions/protocol_safety.md):
//   A rank writes a half for epoch e + 2 only after its grid e + 1 has completed [stream order, or
//   griddepcontrol.wait], so after it had the header of e + 1 from every peer, which a peer sends
//   only after its own grid e has completed, re-arming included. Every pair of ranks exchanges that
//   header in every epoch, also with no tokens.
#pragma once

#include <cstdint>

#include "comm/failure_path.h"
#include "comm/header_check.h"
#include "comm/launch_end.h"
#include "comm/one_shot_params.h"
#include "comm/protocol.h"
#include "comm/wire_type.h"

namespace stoker::comm {

// The vectors of a row that one thread owns.
template <int kVectors>
struct Vectors {
  int index[kVectors];
  bool inside[kVectors];  // false beyond the end of the row
  int row_warps;          // per CTA
};

template <int kVectors, class Env>
STOKER_DEVICE Vectors<kVectors> OwnVectors(Env env, int packets) {
  Vectors<kVectors> vectors;
  vectors.row_warps = env.threads() / 32 - 1;
  const int per_cta = vectors.row_warps * 32;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    vectors.index[v] =
        env.cluster_rank() * per_cta + env.thread() + v * env.cluster_size() * per_cta;
    vectors.inside[v] = vectors.index[v] < packets;
  }
  return vectors;
}

STOKER_DEVICE bool Arrived(const Packet& p) {
  return p.word[0] != kSentinel && p.word[1] != kSentinel && p.word[2] != kSentinel &&
         p.word[3] != kSentinel;
}

STOKER_DEVICE Packet NanPacket() {
  return Packet{{kStoredNanPair, kStoredNanPair, kStoredNanPair, kStoredNanPair}};
}

template <class Env>
STOKER_DEVICE Launch BeginLaunch(Env env, const OneShotParams& p) {
  // Read after the grid dependency: the launch before advances the epoch.
  const Control* control = ControlOf(p.workspace[p.rank]);
  uint32_t epoch = 0, abort = 0;
  if (env.lane() == 0) {
    epoch = env.LoadWord(&control->epoch);
    abort = env.LoadWord(&control->abort);
  }
  Launch launch;
  launch.epoch = env.Shuffle(epoch, 0);
  launch.failed = env.Shuffle(abort, 0) != 0u;
  return launch;
}

template <int kWorld, class Env>
STOKER_DEVICE void Push(Env env, const OneShotParams& p, uint32_t epoch, int token, int vector,
                        const Packet& row) {
  Packet sent = row;
#pragma unroll
  for (int w = 0; w < kPacketWords; ++w) {
    if (sent.word[w] == kSentinel) sent.word[w] = kSentinelSubstitute;
  }
  const int64_t index = p.layout.packet_index(epoch, p.rank, token, vector);
#pragma unroll
  for (int i = 1; i < kWorld; ++i) {
    // Starting behind ourselves, so that not all ranks write to rank 0 first.
    const int peer = p.rank + i < p.layout.world ? p.rank + i : p.rank + i - p.layout.world;
    if (i < p.layout.world) env.StorePacket(MailboxOf(p.workspace[peer]) + index, sent);
  }
}

// Polls until every awaited packet is whole, or kPollsPerLook times; false then.
template <int kWorld, class Env>
STOKER_DEVICE bool Poll(Env env, const OneShotParams& p, const Packet* first, uint32_t& awaited,
                        Packet (&rows)[kWorld]) {
  const int64_t source_stride = static_cast<int64_t>(p.layout.capacity) * p.layout.stride;
  for (int polls = 0; polls < Env::kPollsPerLook; ++polls) {
    const int64_t stride = env.Fresh(source_stride);
#pragma unroll
    for (int r = 0; r < kWorld; ++r) {
      if (awaited >> r & 1u) rows[r] = env.LoadPacket(first + r * stride);
    }
#pragma unroll
    for (int r = 0; r < kWorld; ++r) {
      if ((awaited >> r & 1u) && Arrived(rows[r])) awaited &= ~(1u << r);
    }
    if (awaited == 0u) return true;
    env.Await();
  }
  return false;
}

// Completes `rows`, which holds this rank's own packet in its place, with what the peers have
// pushed; the mailbox is empty again when it returns. On failure all rows are NaN and launch.failed
// is set.
template <int kWorld, class Env>
STOKER_DEVICE void Receive(Env env, const OneShotParams& p, Launch& launch, int token, int vector,
                           Packet (&rows)[kWorld]) {
  Packet* first =
      MailboxOf(p.workspace[p.rank]) + p.layout.packet_index(launch.epoch, 0, token, vector);
  const uint32_t peers = ((1u << p.layout.world) - 1u) & ~(1u << p.rank);
  while (!launch.failed) {
    // All packets are polled anew after a look at the clock: nothing is re-armed before all are
    // here, and no packet has to be kept in registers across the slow path.
    uint32_t awaited = peers;
    if (Poll<kWorld>(env, p, first, awaited, rows)) {
      const int64_t source_stride = static_cast<int64_t>(p.layout.capacity) * p.layout.stride;
#pragma unroll
      for (int r = 0; r < kWorld; ++r) {
        if (peers >> r & 1u) {
          env.StorePacket(first + r * source_stride,
                          Packet{{kSentinel, kSentinel, kSentinel, kSentinel}});
        }
      }
      return;
    }
    env.RaiseTrouble();
    launch.failed = !MayWait(env, p, launch.epoch, awaited, token, vector);
  }
  env.RaiseTrouble();
#pragma unroll
  for (int r = 0; r < kWorld; ++r) rows[r] = NanPacket();
}

// FP32 sum of one vector over the ranks, in rank order, so that all ranks get the same bits.
template <class T, int kWorld, class Env>
STOKER_DEVICE void SumRanks(Env env, int world, const Packet (&rows)[kWorld],
                            float (&sums)[kPacketElements]) {
#pragma unroll
  for (int w = 0; w < kPacketWords; ++w) {
    Unpack<T>(rows[0].word[w], sums[2 * w], sums[2 * w + 1]);
#pragma unroll
    for (int r = 1; r < kWorld; ++r) {
      if (r < world) {
        float low, high;
        Unpack<T>(rows[r].word[w], low, high);
        sums[2 * w] = env.AddRanks(sums[2 * w], low);
        sums[2 * w + 1] = env.AddRanks(sums[2 * w + 1], high);
      }
    }
  }
}

// The service warp's part of a launch up to its end.
template <class Env>
STOKER_DEVICE void Serve(Env env, const OneShotParams& p, Launch& launch) {
  LastLaunch last{};
  if (env.cta() == 0) {
    if (env.lane() == 0) last = ReadLastLaunch(env, ControlOf(p.workspace[p.rank]));
    if (!launch.failed) SendHeaders(env, p, launch);
  }
  TakeTicket(env, p, launch, last);
  if (env.cta() == 0) {
    if (!AwaitHeaders(env, p, launch)) launch.failed = true;
    HandOver(env, p, launch);
  }
  if (launch.failed) env.RaiseTrouble();
}

// A row thread's part of one token.
template <class T, int kWorld, int kVectors, class Env, class Producer, class Epilogue>
STOKER_DEVICE void ExchangeToken(Env env, const OneShotParams& p, Launch& launch, int token,
                                 bool first, const Vectors<kVectors>& vectors, Producer& producer,
                                 Epilogue& epilogue) {
  Packet own[kVectors];
  producer.Row(env, token, vectors, own);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    // A launch that starts after a failure runs ahead of its peers: what it pushed could land in a
    // half that a slow peer still reads for an older epoch, and look right to it.
    if (vectors.inside[v] && !launch.failed) {
      Push<kWorld>(env, p, launch.epoch, token, vectors.index[v], own[v]);
    }
  }
  // The addresses of the pushes hold the epoch, so it has been read; a launch that pushes nothing
  // has no more use for it.
  if (first) env.ArriveRows();
  if (token + env.clusters() < p.tokens) producer.Fetch(env, token + env.clusters());
  epilogue.Fetch(env, token, vectors);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!vectors.inside[v]) continue;
    // The own row, rounded like the others, stands in at its place.
    Packet rows[kWorld];
#pragma unroll
    for (int r = 0; r < kWorld; ++r) rows[r] = r == p.rank ? own[v] : Packet{};
    Receive(env, p, launch, token, vectors.index[v], rows);
    float sums[kPacketElements];
    SumRanks<T>(env, p.layout.world, rows, sums);
    epilogue.Take(env, token, vectors, v, sums);
  }
}

template <class T, int kWorld, int kVectors, class Env, class Producer, class Epilogue>
STOKER_DEVICE void OneShot(Env env, const OneShotParams& p, Producer& producer,
                           Epilogue& epilogue) {
  if (env.thread() == 0) {
    env.ClearTrouble();
    env.InitPartials();
  }
  env.ClusterArrive();  // met before the first store to a neighbour: it must have started
  const Vectors<kVectors> vectors = OwnVectors<kVectors>(env, p.packets);
  const bool service = env.warp() == vectors.row_warps;
  env.GridDependencyWait();
  if (p.early_trigger != 0u) env.LaunchDependents();

  int token = env.cluster();
  if (!service && token < p.tokens) producer.Fetch(env, token);
  Launch launch = BeginLaunch(env, p);
  env.ClusterWait();

  if (service) {
    Serve(env, p, launch);
  } else {
    if (token >= p.tokens) env.ArriveRows();
    for (int turn = 0; token < p.tokens; token += env.clusters(), ++turn) {
      ExchangeToken<T, kWorld>(env, p, launch, token, turn == 0, vectors, producer, epilogue);
      epilogue.Finish(env, token, vectors, turn);
    }
    if (producer.bad_token() >= 0) {
      env.RaiseTrouble();
      Fail(env, p, launch.epoch, FailureCode::kIndexOutOfRange, -1, producer.bad_token(), -1,
           producer.bad_detail(env));
    }
  }
  // By the row threads only: a CTA's first call counts for all of it, and before the rows are done
  // the next launch would take places that other ranks' CTAs of this one may still need.
  if (p.early_trigger == 0u && !service) env.LaunchDependents();
  env.SyncBlock();  // the CTA's rows come before its arrival
  if (service) FinishLaunch(env, p, launch, epilogue);
}

}  // namespace stoker::comm
