// The epilogue of a fused tail: rounds the sum over ranks, adds the residual, and normalises the
// row. The formula is in moe/arguments.h, its rounding in moe/reference.h.
#pragma once

#include <cstdint>

#include "comm/mailbox.h"
#include "comm/protocol.h"
#include "comm/row_reduction.h"
#include "comm/wire_type.h"
#include "moe/kernel_params.h"
#include "moe/load_vector.h"

namespace stoker::moe {

template <class T, int kVectors>
class RmsNormEpilogue {
 public:
  STOKER_DEVICE explicit RmsNormEpilogue(const RmsNormParams& params) : p_(params) {}

  // Puts the residual into flight, so that it arrives while the peers' rows do.
  template <class Env>
  STOKER_DEVICE void Fetch(Env env, int token, const comm::Vectors<kVectors>& vectors) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      // Set in every case, so that the last token's needs no registers while rows are gathered.
      x_[v] = comm::Packet{};
      if (p_.residual_in != nullptr && vectors.inside[v])
        x_[v] = env.LoadInput(p_.residual_in + At(token, vectors.index[v]));
    }
  }

  template <class Env>
  STOKER_DEVICE void Take(Env env, int token, const comm::Vectors<kVectors>& vectors, int v,
                          const float (&sums)[comm::kPacketElements]) {
    AddResidual(env, sums, x_[v]);
    env.StoreOutput(p_.residual_out + At(token, vectors.index[v]), x_[v]);
  }

  // A vector of residual_out, after Take.
  STOKER_DEVICE const comm::Packet& Taken(int v) const { return x_[v]; }

  // Instead of Fetch and Take, on a rank that did not sum.
  template <class Env>
  STOKER_DEVICE void Restore(Env env, int token, const comm::Vectors<kVectors>& vectors, int v,
                             const comm::Packet& taken) {
    x_[v] = taken;
    env.StoreOutput(p_.residual_out + At(token, vectors.index[v]), taken);
  }

  // Returns 1 / sqrt(mean(x^2) + eps).
  template <class Env>
  STOKER_DEVICE float Finish(Env env, int token, const comm::Vectors<kVectors>& vectors, int turn) {
    const Gamma gamma = LoadGamma(env, vectors);  // in flight during the reduction
    float squares[kVectors] = {};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!vectors.inside[v]) continue;
#pragma unroll
      for (int w = 0; w < comm::kPacketWords; ++w) {
        float low, high;
        comm::Unpack<T>(x_[v].word[w], low, high);
        squares[v] = env.Fma(low, low, squares[v]);
        squares[v] = env.Fma(high, high, squares[v]);
      }
    }
    const float total =
        comm::SumOverRow<kVectors>(env, squares, vectors.row_warps, p_.packets, turn);
    const float rstd = env.Reciprocal(env.SquareRoot(env.Fma(total, p_.inverse_hidden, p_.eps)));
    Normalise(env, token, vectors, gamma, rstd);
    return rstd;
  }

  struct Gamma {
    comm::Packet vector[kVectors];
  };

  // FP32 gamma is loaded where it is used: it needs twice the registers.
  template <class Env>
  STOKER_DEVICE Gamma LoadGamma(Env env, const comm::Vectors<kVectors>& vectors) const {
    Gamma gamma = {};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (p_.gamma_fp32 == 0u && vectors.inside[v]) {
        gamma.vector[v] =
            env.LoadInput(static_cast<const comm::Packet*>(p_.gamma) + vectors.index[v]);
      }
    }
    return gamma;
  }

  template <class Env>
  STOKER_DEVICE void Normalise(Env env, int token, const comm::Vectors<kVectors>& vectors,
                               const Gamma& gamma, float rstd) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!vectors.inside[v]) continue;
      float scale[comm::kPacketElements];
      Scale(env, gamma.vector[v], vectors.index[v], scale);
      comm::Packet out;
#pragma unroll
      for (int w = 0; w < comm::kPacketWords; ++w) {
        float low, high;
        comm::Unpack<T>(x_[v].word[w], low, high);
        out.word[w] = comm::Pack<T>((low * rstd) * scale[2 * w], (high * rstd) * scale[2 * w + 1]);
      }
      env.StoreOutput(p_.norm_out + At(token, vectors.index[v]), out);
    }
  }

  template <class Env>
  STOKER_DEVICE void FillNan(Env env) {
    const int64_t packets = static_cast<int64_t>(p_.tokens) * p_.packets;
#pragma unroll 1
    for (int64_t i = env.lane(); i < packets; i += 32) {
      env.StoreOutput(p_.residual_out + i, comm::NanPacket());
      env.StoreOutput(p_.norm_out + i, comm::NanPacket());
    }
  }

 private:
  STOKER_DEVICE int64_t At(int token, int vector) const {
    return static_cast<int64_t>(token) * p_.packets + vector;
  }

  // x holds the residual before and the sum with it after.
  template <class Env>
  STOKER_DEVICE void AddResidual(Env env, const float (&sums)[comm::kPacketElements],
                                 comm::Packet& x) const {
#pragma unroll
    for (int w = 0; w < comm::kPacketWords; ++w) {
      float low = sums[2 * w], high = sums[2 * w + 1];
      if (p_.fp32_residual == 0u) comm::Unpack<T>(comm::Pack<T>(low, high), low, high);
      if (p_.residual_in != nullptr) {
        float residual_low, residual_high;
        comm::Unpack<T>(x.word[w], residual_low, residual_high);
        low = env.Add(low, residual_low);
        high = env.Add(high, residual_high);
      }
      x.word[w] = comm::Pack<T>(low, high);
    }
  }

  template <class Env>
  STOKER_DEVICE void Scale(Env env, const comm::Packet& gamma, int vector,
                           float (&scale)[comm::kPacketElements]) const {
    if (p_.gamma_fp32 != 0u) {
      LoadVector<T>(env, p_.gamma, true, vector, scale);
    } else {
#pragma unroll
      for (int w = 0; w < comm::kPacketWords; ++w) {
        comm::Unpack<T>(gamma.word[w], scale[2 * w], scale[2 * w + 1]);
      }
    }
#pragma unroll
    for (int i = 0; i < comm::kPacketElements; ++i) scale[i] = p_.weight_bias + scale[i];
  }

  const RmsNormParams& p_;
  comm::Packet x_[kVectors];
};

}  // namespace stoker::moe
