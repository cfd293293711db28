// The epilogue of a plain all-reduce: the sum over ranks, rounded to the wire type. Its methods are
// those that comm/launch_frame.h lists.
#pragma once

#include <cstdint>

#include "comm/mailbox.h"
#include "comm/protocol.h"
#include "comm/wire_type.h"
#include "moe/kernel_params.h"

namespace stoker::moe {

template <class T, int kVectors>
class SumEpilogue {
 public:
  STOKER_DEVICE explicit SumEpilogue(const SumParams& params) : p_(params) {}

  template <class Env>
  STOKER_DEVICE void Fetch(Env, int, const comm::Vectors<kVectors>&) {}

  template <class Env>
  STOKER_DEVICE void Take(Env env, int token, const comm::Vectors<kVectors>& vectors, int v,
                          const float (&sums)[comm::kPacketElements]) {
    comm::Packet sum;
#pragma unroll
    for (int w = 0; w < comm::kPacketWords; ++w) {
      sum.word[w] = comm::Pack<T>(sums[2 * w], sums[2 * w + 1]);
    }
    Restore(env, token, vectors, v, sum);
    taken_ = sum;
  }

  // Of the vector that was taken last: an owner pushes each before it takes the next.
  STOKER_DEVICE const comm::Packet& Taken(int) const { return taken_; }

  template <class Env>
  STOKER_DEVICE void Restore(Env env, int token, const comm::Vectors<kVectors>& vectors, int v,
                             const comm::Packet& taken) {
    env.StoreOutput(p_.output + static_cast<int64_t>(token) * p_.packets + vectors.index[v], taken);
  }

  // A row has no scale.
  template <class Env>
  STOKER_DEVICE float Finish(Env, int, const comm::Vectors<kVectors>&, int) {
    return 1.0f;
  }
  struct Gamma {};
  template <class Env>
  STOKER_DEVICE Gamma LoadGamma(Env, const comm::Vectors<kVectors>&) const {
    return {};
  }
  template <class Env>
  STOKER_DEVICE void Normalise(Env, int, const comm::Vectors<kVectors>&, const Gamma&, float) {}

  template <class Env>
  STOKER_DEVICE void FillNan(Env env) {
    const int64_t packets = static_cast<int64_t>(p_.tokens) * p_.packets;
#pragma unroll 1
    for (int64_t i = env.lane(); i < packets; i += 32) {
      env.StoreOutput(p_.output + i, comm::NanPacket());
    }
  }

 private:
  const SumParams& p_;
  comm::Packet taken_;
};

}  // namespace stoker::moe
