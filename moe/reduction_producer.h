// The producer of a MoE layer whose active experts have all computed every token: weights and sums
// a token's row of each expert in FP32, adds the shared expert, and rounds once. The formula is in
// moe/arguments.h.
//
// Which rows a token needs follows from its number, so nothing is loaded before the rows but the
// scales, one an expert: lane e of each warp loads that of expert e, and the warp passes them
// around. Rows are loaded in chunks of eight before the first is used.
#pragma once

#include <cstdint>

#include "comm/failure_path.h"
#include "comm/mailbox.h"
#include "comm/protocol.h"
#include "comm/wire_type.h"
#include "moe/finalize_producer.h"
#include "moe/kernel_params.h"

namespace stoker::moe {

template <class T>
class ReductionProducer {
 public:
  STOKER_DEVICE explicit ReductionProducer(const ReductionParams& params) : p_(params) {}

  template <class Env>
  STOKER_DEVICE void Fetch(Env env, int token) {
    FetchScales(env, token, 0);
  }

  template <class Env, int kVectors>
  STOKER_DEVICE void Row(Env env, int token, const comm::Vectors<kVectors>& vectors,
                         comm::Packet (&rows)[kVectors]) {
    // Under way while the scales are; a thread with several vectors has no registers for that.
    comm::Packet shared{};
    if (kVectors == 1 && p_.shared != nullptr && vectors.inside[0]) {
      shared = env.LoadInput(p_.shared + At(token, vectors.index[0]));
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (v > 0 && p_.experts > kLanes) FetchScales(env, token, 0);
      float sum[comm::kPacketElements] = {};
      SumExperts<kRowsInFlight<kVectors>, (kVectors > 1)>(env, token, vectors.index[v],
                                                          vectors.inside[v], sum);
      if (vectors.inside[v] && p_.shared != nullptr) {
        if (kVectors > 1) shared = env.LoadInput(p_.shared + At(token, vectors.index[v]));
#pragma unroll
        for (int w = 0; w < comm::kPacketWords; ++w) {
          float low, high;
          comm::Unpack<T>(shared.word[w], low, high);
          sum[2 * w] = env.Add(sum[2 * w], low);
          sum[2 * w + 1] = env.Add(sum[2 * w + 1], high);
        }
      }
#pragma unroll
      for (int w = 0; w < comm::kPacketWords; ++w) {
        rows[v].word[w] = comm::Pack<T>(sum[2 * w], sum[2 * w + 1]);
      }
    }
  }

  STOKER_DEVICE int32_t bad_token() const { return -1; }
  template <class Env>
  STOKER_DEVICE uint64_t bad_detail(Env) const {
    return 0;
  }

 private:
  static constexpr int kLanes = 32;

  STOKER_DEVICE int64_t At(int token, int vector) const {
    return static_cast<int64_t>(token) * p_.packets + vector;
  }

  // Lane e gets the scale of expert first + e, +0 beyond the last.
  template <class Env>
  STOKER_DEVICE void FetchScales(Env env, int token, int first) {
    const int expert = first + env.lane();
    scale_ = 0.0f;
    if (expert < p_.experts) {
      scale_ = comm::FloatFromBits(
          env.LoadInput32(p_.scales + (static_cast<int64_t>(expert) * p_.tokens + token)));
    }
  }

  template <int kRows, bool kStreamed, class Env>
  STOKER_DEVICE void SumExperts(Env env, int token, int vector, bool inside,
                                float (&sum)[comm::kPacketElements]) {
#pragma unroll 1
    for (int first = 0; first < p_.experts; first += kRows) {
      if (first > 0 && first % kLanes == 0) FetchScales(env, token, first);
      SumChunk<kRows, kStreamed>(env, token, vector, inside, first, sum);
    }
  }

  // Beyond the last expert the scale is +0 and the row -0: fma(+0, -0, a) = a for every a.
  template <int kRows, bool kStreamed, class Env>
  STOKER_DEVICE void SumChunk(Env env, int token, int vector, bool inside, int first,
                              float (&sum)[comm::kPacketElements]) {
    const comm::Packet* place =
        p_.rows + (static_cast<int64_t>(first) * p_.expert_packets + At(token, vector));
    const int rows = inside ? p_.experts - first : 0;
    comm::Packet row[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      row[k] = comm::Packet{{kMinusZeroPair, kMinusZeroPair, kMinusZeroPair, kMinusZeroPair}};
      if (k < rows) {
        const comm::Packet* row_place = place + static_cast<uint64_t>(p_.expert_packets) * k;
        row[k] = kStreamed ? env.LoadStreamed(row_place) : env.LoadInput(row_place);
      }
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const float w =
          comm::FloatFromBits(env.Shuffle(comm::BitsFromFloat(scale_), (first + k) % kLanes));
#pragma unroll
      for (int i = 0; i < comm::kPacketWords; ++i) {
        float low, high;
        comm::Unpack<T>(row[k].word[i], low, high);
        sum[2 * i] = env.Fma(w, low, sum[2 * i]);
        sum[2 * i + 1] = env.Fma(w, high, sum[2 * i + 1]);
      }
    }
  }

  const ReductionParams& p_;
  float scale_ = 0.0f;  // of expert `lane` of the 32 that are being summed
};

// What the kernel entry (moe/kernel_entry.cuh) puts together.
template <class T>
struct Reduction {
  using Params = ReductionParams;
  using Producer = ReductionProducer<T>;
};

}  // namespace stoker::moe
