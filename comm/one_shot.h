// One-shot exchange: every rank pushes its row of every token into every peer's mailbox, polls its
// own mailbox for the peers' rows, and sums them in rank order in FP32. A rank sends world - 1 rows
// a token, in one hop.
#pragma once

#include "comm/launch_frame.h"
#include "comm/mailbox.h"

namespace stoker::comm {

template <class T, int kWorld>
struct OneShot {
  template <int kVectors, class Env, class Producer, class Epilogue>
  STOKER_DEVICE static void Rows(Env env, const ExchangeParams& p, Launch& launch, Tokens tokens,
                                 const Vectors<kVectors>& vectors, Producer& producer,
                                 Epilogue& epilogue) {
    for (int token = tokens.first; token < tokens.end; ++token) {
      Token(env, p, launch, tokens, token, vectors, producer, epilogue);
      epilogue.Finish(env, token, vectors, token - tokens.first);
    }
  }

 private:
  template <int kVectors, class Env, class Producer, class Epilogue>
  STOKER_DEVICE static void Token(Env env, const ExchangeParams& p, Launch& launch, Tokens tokens,
                                  int token, const Vectors<kVectors>& vectors, Producer& producer,
                                  Epilogue& epilogue) {
    Packet own[kVectors];
    producer.Row(env, token, vectors, own);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      // A launch that starts after a failure runs ahead of its peers: what it pushed could land in
      // a half that a slow peer still reads for an older epoch, and look right to it.
      if (vectors.inside[v] && !launch.failed) {
        Push<kWorld>(env, p, launch.epoch, token, vectors.index[v], own[v]);
      }
    }
    if (token == tokens.first) env.ArriveRows();
    if (token + 1 < tokens.end) producer.Fetch(env, token + 1);
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
};

}  // namespace stoker::comm
