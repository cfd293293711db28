// Two-shot exchange: a token belongs to rank token mod world. Every rank pushes its row to the
// owner, which sums the rows in rank order in FP32 and pushes what the epilogue made of the sum,
// and the row's scale, to everyone. A rank sends 2 (world - 1) / world rows a token instead of
// world - 1, in two hops: it wins where the bytes and not the hops cost the time. The bits are
// those of the one-shot exchange, because the sum is formed in the same order, and once.
//
// The same mailbox serves both shots: at the owner a token's packets from every source are rows, at
// the others the owner's packet of that token is the result, and no rank uses a place for both. An
// owner's own row waits in its own place, which nobody polls and which is never re-armed.
//
// Progress: all rows are pushed before anything is awaited, and all owned tokens are finished
// before a result is, so an awaited packet depends only on what its sender does without waiting for
// us.
#pragma once

#include <cstdint>

#include "comm/launch_frame.h"
#include "comm/mailbox.h"

namespace stoker::comm {

template <class T, int kWorld>
struct TwoShot {
  template <int kVectors, class Env, class Producer, class Epilogue>
  STOKER_DEVICE static void Rows(Env env, const ExchangeParams& p, Launch& launch, Tokens tokens,
                                 const Vectors<kVectors>& vectors, Producer& producer,
                                 Epilogue& epilogue) {
    for (int token = tokens.first; token < tokens.end; ++token) {
      SendToOwner(env, p, launch, token, vectors, producer);
      if (token == tokens.first) env.ArriveRows();
      if (token + 1 < tokens.end) producer.Fetch(env, token + 1);
    }
    int turn = 0;
    for (int token = tokens.first; token < tokens.end; ++token) {
      if (token % p.layout.world == p.rank) {
        FinishOwned(env, p, launch, token, turn++, vectors, epilogue);
      }
    }
    for (int token = tokens.first; token < tokens.end; ++token) {
      const int owner = token % p.layout.world;
      if (owner != p.rank) TakeOver(env, p, launch, owner, token, vectors, epilogue);
    }
  }

 private:
  template <int kVectors, class Env, class Producer>
  STOKER_DEVICE static void SendToOwner(Env env, const ExchangeParams& p, const Launch& launch,
                                        int token, const Vectors<kVectors>& vectors,
                                        Producer& producer) {
    Packet own[kVectors];
    producer.Row(env, token, vectors, own);
    Packet* place = MailboxOf(p.workspace[token % p.layout.world]);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      // As in the one-shot exchange, a launch that starts after a failure pushes nothing.
      if (vectors.inside[v] && !launch.failed) {
        env.StorePacket(
            place + p.layout.packet_index(launch.epoch, p.rank, token, vectors.index[v]),
            WithoutSentinels(own[v]));
      }
    }
  }

  template <int kVectors, class Env, class Epilogue>
  STOKER_DEVICE static void FinishOwned(Env env, const ExchangeParams& p, Launch& launch, int token,
                                        int turn, const Vectors<kVectors>& vectors,
                                        Epilogue& epilogue) {
    epilogue.Fetch(env, token, vectors);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!vectors.inside[v]) continue;
      const Packet* own = MailboxOf(p.workspace[p.rank]) +
                          p.layout.packet_index(launch.epoch, p.rank, token, vectors.index[v]);
      const Packet sent = env.LoadPacket(own);
      Packet rows[kWorld];
#pragma unroll
      for (int r = 0; r < kWorld; ++r) rows[r] = r == p.rank ? sent : Packet{};
      Receive(env, p, launch, token, vectors.index[v], rows);
      float sums[kPacketElements];
      SumRanks<T>(env, p.layout.world, rows, sums);
      epilogue.Take(env, token, vectors, v, sums);
      if (!launch.failed) {
        Push<kWorld>(env, p, launch.epoch, token, vectors.index[v], epilogue.Taken(v));
      }
    }
    const float scale = epilogue.Finish(env, token, vectors, turn);
    if (launch.failed || env.cluster_rank() != 0) return;
    const int peer = env.thread();
    if (peer < p.layout.world && peer != p.rank) {
      env.StoreHeader(
          ScalesOf(p.workspace[peer], p.layout) + p.layout.scale_index(launch.epoch, token),
          HeaderWord(launch.epoch, BitsFromFloat(scale)));
    }
  }

  template <int kVectors, class Env, class Epilogue>
  STOKER_DEVICE static void TakeOver(Env env, const ExchangeParams& p, Launch& launch, int owner,
                                     int token, const Vectors<kVectors>& vectors,
                                     Epilogue& epilogue) {
    const auto gamma = epilogue.LoadGamma(env, vectors);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!vectors.inside[v]) continue;
      epilogue.Restore(env, token, vectors, v,
                       ReceiveFrom(env, p, launch, owner, token, vectors.index[v]));
    }
    epilogue.Normalise(env, token, vectors, gamma, ReceiveScale(env, p, launch, owner, token));
  }

  // A scale carries its epoch, like a header: it is read by all threads of a cluster, so none of
  // them could re-arm it. NaN on failure.
  template <class Env>
  STOKER_DEVICE static float ReceiveScale(Env env, const ExchangeParams& p, Launch& launch,
                                          int owner, int token) {
    const uint64_t* place =
        ScalesOf(p.workspace[p.rank], p.layout) + p.layout.scale_index(launch.epoch, token);
    while (!launch.failed) {
      for (int polls = 0; polls < Env::kPollsPerLook; ++polls) {
        const uint64_t word = env.LoadHeader(place);
        if (HeaderEpoch(word) == launch.epoch) return FloatFromBits(HeaderValue(word));
        env.Await();
      }
      env.RaiseTrouble();
      launch.failed = !MayWait(env, p, launch.epoch, 1u << owner, token, -1);
    }
    env.RaiseTrouble();
    return FloatFromBits(0x7FC00000u);
  }
};

}  // namespace stoker::comm
