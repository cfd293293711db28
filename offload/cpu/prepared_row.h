// Where the parts of a prepared row lie. Blocks are padded to a multiple of 16 with zeros.
//   float factor[blocks]; int32 eight_sums[blocks] (8 * sum of the block's values);
//   int8 values[blocks * group]: per 128 elements the 64 even ones, then the 64 odd ones, so that
//   the low nibbles of 64 bytes of weights meet 64 consecutive values, and the high ones the next.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stoker::offload::cpu {

// Always inlined: these files are compiled for different instruction sets, and the linker would
// keep one copy for all.
struct PreparedLayout {
  int blocks;
  size_t eight_sums, values, bytes;

  [[gnu::always_inline]] PreparedLayout(int columns, int group)
      : blocks((columns / group + 15) / 16 * 16),
        eight_sums(sizeof(float) * blocks),
        values(eight_sums + sizeof(int32_t) * blocks),
        bytes(values + static_cast<size_t>(blocks) * group) {}

  [[gnu::always_inline]] static size_t ValueIndex(int element) {
    const int within = element % 128;
    return static_cast<size_t>(element - within) + within % 2 * 64 + within / 2;
  }
};

}  // namespace stoker::offload::cpu
