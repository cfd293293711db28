// Moving packets through mailboxes: pushing into a peer's, awaiting in one's own, and the sum over
// ranks. Every wait is bounded (comm/failure_path.h).
#pragma once

#include <cstdint>

#include "comm/exchange_params.h"
#include "comm/failure_path.h"
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

// The tokens [first, end) that a cluster works on, in this order. They are consecutive, because
// those of a two-shot exchange have owners in turn: with every n-th token instead, and n a multiple
// of the world, a few clusters would own all of a rank's tokens.
struct Tokens {
  int first, end;
};

template <class Env>
STOKER_DEVICE Tokens OwnTokens(Env env, int tokens) {
  const int cluster = env.cluster(), clusters = env.clusters();
  if (clusters >= tokens) return {cluster, cluster < tokens ? cluster + 1 : cluster};
  return {cluster * tokens / clusters, (cluster + 1) * tokens / clusters};
}

STOKER_DEVICE bool Arrived(const Packet& p) {
  return p.word[0] != kSentinel && p.word[1] != kSentinel && p.word[2] != kSentinel &&
         p.word[3] != kSentinel;
}

STOKER_DEVICE Packet NanPacket() {
  return Packet{{kStoredNanPair, kStoredNanPair, kStoredNanPair, kStoredNanPair}};
}

STOKER_DEVICE Packet EmptyPacket() { return Packet{{kSentinel, kSentinel, kSentinel, kSentinel}}; }

// As a peer may see it: no word says that it has not arrived.
STOKER_DEVICE Packet WithoutSentinels(Packet packet) {
#pragma unroll
  for (int w = 0; w < kPacketWords; ++w) {
    if (packet.word[w] == kSentinel) packet.word[w] = kSentinelSubstitute;
  }
  return packet;
}

// Into every peer's mailbox.
template <int kWorld, class Env>
STOKER_DEVICE void Push(Env env, const ExchangeParams& p, uint32_t epoch, int token, int vector,
                        const Packet& row) {
  const Packet sent = WithoutSentinels(row);
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
STOKER_DEVICE bool Poll(Env env, const ExchangeParams& p, const Packet* first, uint32_t& awaited,
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
STOKER_DEVICE void Receive(Env env, const ExchangeParams& p, Launch& launch, int token, int vector,
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
        if (peers >> r & 1u) env.StorePacket(first + r * source_stride, EmptyPacket());
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

// The packet that `source` has pushed; its place is empty again when it returns. NaN on failure.
template <class Env>
STOKER_DEVICE Packet ReceiveFrom(Env env, const ExchangeParams& p, Launch& launch, int source,
                                 int token, int vector) {
  Packet* place =
      MailboxOf(p.workspace[p.rank]) + p.layout.packet_index(launch.epoch, source, token, vector);
  while (!launch.failed) {
    for (int polls = 0; polls < Env::kPollsPerLook; ++polls) {
      const Packet packet = env.LoadPacket(place);
      if (Arrived(packet)) {
        env.StorePacket(place, EmptyPacket());
        return packet;
      }
      env.Await();
    }
    env.RaiseTrouble();
    launch.failed = !MayWait(env, p, launch.epoch, 1u << source, token, vector);
  }
  env.RaiseTrouble();
  return NanPacket();
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

}  // namespace stoker::comm
