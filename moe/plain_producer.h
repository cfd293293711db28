// The producer of a plain all-reduce: this rank's row is the caller's, bit for bit.
#pragma once

#include <cstdint>

#include "comm/failure_path.h"
#include "comm/mailbox.h"
#include "comm/protocol.h"
#include "moe/kernel_params.h"

namespace stoker::moe {

template <class T>
class PlainProducer {
 public:
  STOKER_DEVICE explicit PlainProducer(const PlainParams& params) : p_(params) {}

  template <class Env>
  STOKER_DEVICE void Fetch(Env, int) {}

  template <class Env, int kVectors>
  STOKER_DEVICE void Row(Env env, int token, const comm::Vectors<kVectors>& vectors,
                         comm::Packet (&rows)[kVectors]) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      rows[v] = comm::Packet{};
      if (vectors.inside[v]) {
        rows[v] =
            env.LoadInput(p_.input + static_cast<int64_t>(token) * p_.packets + vectors.index[v]);
      }
    }
  }

  STOKER_DEVICE int32_t bad_token() const { return -1; }
  template <class Env>
  STOKER_DEVICE uint64_t bad_detail(Env) const {
    return 0;
  }

 private:
  const PlainParams& p_;
};

}  // namespace stoker::moe
