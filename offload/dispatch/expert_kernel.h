// What computes the tiles of an expert, as the engine sees it. An implementation is stateless and
// thread-safe, and yields the same bits for a row whatever else it computes.
#pragma once

#include <cmath>
#include <cstddef>

#include "offload/store/checkpoint.h"

namespace stoker::offload {

// Indexed by Part and laid out as it says, scales of shape.scale_type; value = nibble - zero. A
// part that the shape has not may point anywhere.
struct ExpertView {
  ExpertShape shape;
  std::array<const char*, kParts> parts;
};

// What Prepare wrote, `stride` bytes apart; a stride of 0 is one row that stands for all.
struct PreparedTokens {
  const char* data = nullptr;
  size_t stride = 0;
  int tokens = 0;
};

class ExpertKernel {
 public:
  virtual ~ExpertKernel() = default;
  // Bytes of what Prepare writes for a row; a multiple of 64.
  virtual size_t PreparedBytes(int columns, int group) const = 0;
  // Quantises a row of activations.
  virtual void Prepare(const float* row, int columns, int group, char* prepared) const = 0;
  // Rows [begin, end) of the activated intermediate of every token: out[t * out_stride + i] for
  // each i of them.
  virtual void Fc1(const ExpertView& expert, const PreparedTokens& in, int begin, int end,
                   float* out, size_t out_stride) const = 0;
  // Rows [begin, end) of the result.
  virtual void Fc2(const ExpertView& expert, const PreparedTokens& in, int begin, int end,
                   float* out, size_t out_stride) const = 0;
  // sum[i] = fma(weight, row[i], sum[i]).
  virtual void Accumulate(float weight, const float* row, size_t count, float* sum) const {
    for (size_t i = 0; i < count; ++i) sum[i] = std::fma(weight, row[i], sum[i]);
  }
};

}  // namespace stoker::offload
