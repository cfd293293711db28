// The exchange of a launch whose rows NCCL has summed already: nothing is pushed or awaited but the
// headers, so that a call through NCCL is told from another one, and becomes NaN, like every other.
#pragma once

#include "comm/launch_frame.h"
#include "comm/wire_type.h"

namespace stoker::comm {

template <class T, int kWorld>
struct Nccl {
  template <int kVectors, class Env, class Producer, class Epilogue>
  STOKER_DEVICE static void Rows(Env env, const ExchangeParams&, Launch&, Tokens tokens,
                                 const Vectors<kVectors>& vectors, Producer& producer,
                                 Epilogue& epilogue) {
    for (int token = tokens.first; token < tokens.end; ++token) {
      Packet row[kVectors];
      producer.Row(env, token, vectors, row);
      if (token == tokens.first) env.ArriveRows();
      if (token + 1 < tokens.end) producer.Fetch(env, token + 1);
      epilogue.Fetch(env, token, vectors);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (!vectors.inside[v]) continue;
        float sums[kPacketElements];
#pragma unroll
        for (int w = 0; w < kPacketWords; ++w) {
          Unpack<T>(row[v].word[w], sums[2 * w], sums[2 * w + 1]);
        }
        epilogue.Take(env, token, vectors, v, sums);
      }
      epilogue.Finish(env, token, vectors, token - tokens.first);
    }
  }
};

}  // namespace stoker::comm
