// What computes the tiles of an expert, as the engine sees it. An implementation is stateless and
// thread-safe, and yields the same bits for a row whatever else it computes.
#pragma once

#include <cstddef>

#include "offload/store/checkpoint.h"

namespace stoker::offload {

// Weights [rows, columns / 2] bytes, low nibble first, value = nibble - 8; scales [rows,
// columns / group] of shape.scale_type. Parts are indexed by Part.
struct ExpertView {
  ExpertShape shape;
  std::array<const char*, kParts> parts;
};

class ExpertKernel {
 public:
  virtual ~ExpertKernel() = default;
  // Bytes of what Prepare writes for a row; a multiple of 64.
  virtual size_t PreparedBytes(int columns, int group) const = 0;
  // Quantises a row of activations.
  virtual void Prepare(const float* row, int columns, int group, char* prepared) const = 0;
  // Rows [begin, end) of the activated intermediate: out[i] for each i of them.
  virtual void Fc1(const ExpertView& expert, const char* prepared, int begin, int end,
                   float* out) const = 0;
  // Rows [begin, end) of the result.
  virtual void Fc2(const ExpertView& expert, const char* prepared, int begin, int end,
                   float* out) const = 0;
};

}  // namespace stoker::offload
