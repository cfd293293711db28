// The producer of a MoE layer's tail: gathers the expert rows of a token, weights and sums them in
// FP32, adds the shared expert and the cold experts, and rounds once. The formula is in
// moe/arguments.h.
//
// Lane k of each warp loads route k (index and weight: one transaction each), the warp passes them
// around, and rows are loaded in chunks of eight before the first is used.
#pragma once

#include <cstdint>

#include "comm/failure_path.h"
#include "comm/mailbox.h"
#include "comm/protocol.h"
#include "comm/wire_type.h"
#include "moe/kernel_params.h"
#include "moe/load_vector.h"

namespace stoker::moe {

// Rows that a thread has in flight. Eight hide the latency of a launch with few tokens; a thread
// with several vectors belongs to a launch with many, where four per thread saturate the memory and
// the registers are wanted for the vectors. They are loaded past L1: no row is read twice.
template <int kVectors>
inline constexpr int kRowsInFlight = kVectors == 1 ? 8 : 4;
inline constexpr uint32_t kMinusZeroPair = 0x80008000u;

template <class T>
class FinalizeProducer {
 public:
  STOKER_DEVICE explicit FinalizeProducer(const FinalizeParams& params) : p_(params) {}

  template <class Env>
  STOKER_DEVICE void Fetch(Env env, int token) {
    index_ = -1;
    weight_ = comm::BitsFromFloat(1.0f);
    if (env.lane() >= p_.top_k) return;
    const int64_t route = static_cast<int64_t>(token) * p_.top_k + env.lane();
    index_ = static_cast<int32_t>(env.LoadInput32(p_.indices + route));
    if (p_.weights == nullptr) return;
    if (p_.weights_fp32 != 0u) {
      weight_ = env.LoadInput32(static_cast<const float*>(p_.weights) + route);
    } else {
      weight_ = env.LoadInput16(static_cast<const uint16_t*>(p_.weights) + route);
    }
  }

  template <class Env, int kVectors>
  STOKER_DEVICE void Row(Env env, int token, const comm::Vectors<kVectors>& vectors,
                         comm::Packet (&rows)[kVectors]) {
    // Needs no route, so it is under way while the routes are; a thread with several vectors has no
    // registers for that and loads it where it is used.
    comm::Packet shared{};
    if (kVectors == 1 && p_.shared != nullptr && vectors.inside[0]) {
      shared = env.LoadInput(p_.shared + At(token, vectors.index[0]));
    }
    const bool bad = index_ >= p_.row_count;
    if (bad) {
      bad_token_ = token;
      index_ = -1;
    }
    float weight = comm::FloatFromBits(weight_);
    if (p_.weights != nullptr && p_.weights_fp32 == 0u) {
      weight = T::ToFloat(static_cast<uint16_t>(weight_));
    }
    if (index_ < 0) weight = 0.0f;
    const bool token_bad = env.Any(bad);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float sum[comm::kPacketElements] = {};
      SumRoutes<kRowsInFlight<kVectors>>(env, weight, vectors.index[v], vectors.inside[v], sum);
      if (vectors.inside[v]) {
        if (kVectors > 1 && p_.shared != nullptr) {
          shared = env.LoadInput(p_.shared + At(token, vectors.index[v]));
        }
        AddTail(env, token, vectors.index[v], shared, sum);
      }
#pragma unroll
      for (int w = 0; w < comm::kPacketWords; ++w) {
        // A row that cannot be right must not look right on any rank.
        rows[v].word[w] =
            token_bad ? comm::kStoredNanPair : comm::Pack<T>(sum[2 * w], sum[2 * w + 1]);
      }
    }
  }

  STOKER_DEVICE int32_t bad_token() const { return bad_token_; }
  // The rows there are and the first index of bad_token() that is not below them; loaded anew, so
  // that launches with good indices keep no register for it.
  template <class Env>
  STOKER_DEVICE uint64_t bad_detail(Env env) const {
    const int32_t* route = p_.indices + static_cast<int64_t>(bad_token_) * p_.top_k;
    int32_t index = 0;
#pragma unroll 1
    for (int k = 0; k < p_.top_k && index < p_.row_count; ++k) {
      index = static_cast<int32_t>(env.LoadInput32(route + k));
    }
    return static_cast<uint64_t>(p_.row_count) << 32 | static_cast<uint32_t>(index);
  }

 private:
  STOKER_DEVICE int64_t At(int token, int vector) const {
    return static_cast<int64_t>(token) * p_.packets + vector;
  }

  // The first chunk is code of its own: its sums start as constants, so that the rows have their
  // registers while they are under way.
  template <int kRows, class Env>
  STOKER_DEVICE void SumRoutes(Env env, float weight, int vector, bool inside,
                               float (&sum)[comm::kPacketElements]) {
    SumChunk<kRows>(env, weight, vector, inside, 0, sum);
#pragma unroll 1
    for (int first = kRows; first < p_.top_k; first += kRows) {
      SumChunk<kRows>(env, weight, vector, inside, first, sum);
    }
  }

  // A dropped route has weight +0 and a row of -0: fma(+0, -0, a) = a for every a, signed zeros,
  // NaN and infinities included, so it needs no branch of its own.
  template <int kRows, class Env>
  STOKER_DEVICE void SumChunk(Env env, float weight, int vector, bool inside, int first,
                              float (&sum)[comm::kPacketElements]) {
    const comm::Packet* column = p_.rows + vector;
    comm::Packet row[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int32_t index =
          static_cast<int32_t>(env.Shuffle(static_cast<uint32_t>(index_), (first + k) & 31));
      row[k] = comm::Packet{{kMinusZeroPair, kMinusZeroPair, kMinusZeroPair, kMinusZeroPair}};
      if (index >= 0 && inside) {
        row[k] = env.LoadStreamed(column + static_cast<int64_t>(index) * p_.packets);
      }
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const float w =
          comm::FloatFromBits(env.Shuffle(comm::BitsFromFloat(weight), (first + k) & 31));
#pragma unroll
      for (int i = 0; i < comm::kPacketWords; ++i) {
        float low, high;
        comm::Unpack<T>(row[k].word[i], low, high);
        sum[2 * i] = env.Fma(w, low, sum[2 * i]);
        sum[2 * i + 1] = env.Fma(w, high, sum[2 * i + 1]);
      }
    }
  }

  template <class Env>
  STOKER_DEVICE void AddTail(Env env, int token, int vector, const comm::Packet& shared,
                             float (&sum)[comm::kPacketElements]) {
#pragma unroll
    for (int i = 0; i < comm::kPacketElements; ++i) sum[i] = sum[i] * p_.routed_scaling_factor;
    if (p_.shared != nullptr) {
#pragma unroll
      for (int w = 0; w < comm::kPacketWords; ++w) {
        float low, high;
        comm::Unpack<T>(shared.word[w], low, high);
        sum[2 * w] = env.Add(sum[2 * w], low);
        sum[2 * w + 1] = env.Add(sum[2 * w + 1], high);
      }
    }
    if (p_.cold != nullptr) {
      float addend[comm::kPacketElements];
      LoadVector<T>(env, p_.cold, p_.cold_fp32 != 0u, At(token, vector), addend);
#pragma unroll
      for (int i = 0; i < comm::kPacketElements; ++i) sum[i] = env.Add(sum[i], addend[i]);
    }
  }

  const FinalizeParams& p_;
  int32_t index_ = -1;   // of route `lane`
  uint32_t weight_ = 0;  // its weight's bits, of T or FP32
  int32_t bad_token_ = -1;
};

}  // namespace stoker::moe
