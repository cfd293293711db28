#include "offload/pack/transpose.h"

#include <cstring>

namespace stoker::offload {
namespace {

// Where AWQ puts column i of eight: the inverse of 0, 2, 4, 6, 1, 3, 5, 7.
constexpr int kAwqNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};
constexpr int kInOrder[8] = {0, 1, 2, 3, 4, 5, 6, 7};

uint32_t Word(absl::string_view bytes, size_t index) {
  uint32_t word;
  std::memcpy(&word, bytes.data() + index * sizeof(word), sizeof(word));
  return word;
}

void SetNibble(std::string* bytes, size_t index, uint32_t value) {
  char& byte = (*bytes)[index / 2];
  byte = static_cast<char>(static_cast<unsigned char>(byte) | value << (index % 2 * 4));
}

// `packed` [blocks, n / 8] words of columns.
std::string Zeros(absl::string_view packed, const TransposedSizes& s, const int* nibble_of,
                  uint32_t add) {
  const size_t blocks = s.k / s.group;
  std::string zeros(s.n / 8 * blocks * sizeof(uint32_t), '\0');
  for (size_t block = 0; block < blocks; ++block) {
    for (int column = 0; column < s.n; ++column) {
      const uint32_t word = Word(packed, block * (s.n / 8) + column / 8);
      const uint32_t zero = ((word >> (4 * nibble_of[column % 8]) & 15) + add) & 15;
      SetNibble(&zeros, (column / 8 * blocks + block) * 8 + column % 8, zero);
    }
  }
  return zeros;
}

}  // namespace

std::string WeightsFromAwq(absl::string_view qweight, const TransposedSizes& s) {
  std::string weights(static_cast<size_t>(s.n) * s.k / 2, '\0');
  for (size_t row = 0; row < static_cast<size_t>(s.k); ++row) {
    for (int c = 0; c < s.n / 8; ++c) {
      const uint32_t word = Word(qweight, row * (s.n / 8) + c);
      for (int i = 0; i < 8; ++i) {
        SetNibble(&weights, static_cast<size_t>(8 * c + i) * s.k + row,
                  word >> (4 * kAwqNibble[i]) & 15);
      }
    }
  }
  return weights;
}

std::string WeightsFromGptq(absl::string_view qweight, const TransposedSizes& s) {
  std::string weights(static_cast<size_t>(s.n) * s.k / 2, '\0');
  // Eight inputs of one output are a word there and here.
  for (size_t r = 0; r < static_cast<size_t>(s.k) / 8; ++r) {
    for (size_t column = 0; column < static_cast<size_t>(s.n); ++column) {
      std::memcpy(weights.data() + column * s.k / 2 + 4 * r,
                  qweight.data() + 4 * (r * s.n + column), sizeof(uint32_t));
    }
  }
  return weights;
}

std::string ZerosFromAwq(absl::string_view qzeros, const TransposedSizes& sizes) {
  return Zeros(qzeros, sizes, kAwqNibble, 0);
}

std::string ZerosFromGptq(absl::string_view qzeros, const TransposedSizes& sizes, bool add_one) {
  return Zeros(qzeros, sizes, kInOrder, add_one ? 1 : 0);
}

std::string TransposeScales(absl::string_view scales, const TransposedSizes& s,
                            size_t element_bytes) {
  const size_t blocks = s.k / s.group;
  std::string out(scales.size(), '\0');
  for (size_t block = 0; block < blocks; ++block) {
    for (size_t column = 0; column < static_cast<size_t>(s.n); ++column) {
      std::memcpy(out.data() + (column * blocks + block) * element_bytes,
                  scales.data() + (block * s.n + column) * element_bytes, element_bytes);
    }
  }
  return out;
}

}  // namespace stoker::offload
