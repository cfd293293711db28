// Where the parts of a prepared row lie. Blocks are padded to a multiple of 16 with zeros.
//   float factor[blocks], fine_factor[blocks]: the step of a value, and factor / 256;
//   int32 eight_sums[blocks], fine_eight_sums[blocks]: 8 * sum of the block's values, and of
//   256 * value + remainder;
//   int8 values[blocks * group]: per 128 elements the 64 even ones, then the 64 odd ones, so that
//   the low nibbles of 64 bytes of weights meet 64 consecutive values, and the high ones the next;
//   int8 remainders[blocks * group]: what rounding left, in 256ths of a step, in the same order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "offload/cpu/expert.h"

namespace stoker::offload::cpu {

// Always inlined: these files are compiled for different instruction sets, and the linker would
// keep one copy for all.
struct PreparedLayout {
  int blocks;
  size_t fine_factors, eight_sums, fine_eight_sums, values, remainders, bytes;

  [[gnu::always_inline]] PreparedLayout(int columns, int group)
      : blocks((columns / group + 15) / 16 * 16),
        fine_factors(sizeof(float) * blocks),
        eight_sums(2 * fine_factors),
        fine_eight_sums(eight_sums + sizeof(int32_t) * blocks),
        values(fine_eight_sums + sizeof(int32_t) * blocks),
        remainders(values + static_cast<size_t>(blocks) * group),
        bytes(remainders + static_cast<size_t>(blocks) * group) {}

  [[gnu::always_inline]] static size_t ValueIndex(int element) {
    const int within = element % 128;
    return static_cast<size_t>(element - within) + within % 2 * 64 + within / 2;
  }
};

// The zero point of a block.
[[gnu::always_inline]] inline int ZeroAt(const PackedMatrix& m, int row, int block) {
  if (m.zeros == nullptr) return 8;
  const int stored = m.zero_row + row * m.zero_row_step;
  uint32_t word;
  __builtin_memcpy(&word, m.zeros + stored / 8 * m.zero_stride + 4 * block, sizeof(word));
  return static_cast<int>(word >> (stored % 8 * 4) & 15);
}

}  // namespace stoker::offload::cpu
