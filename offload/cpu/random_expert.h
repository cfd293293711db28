// Experts and rows with random contents for tests, and tiles run over them.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "offload/cpu/kernel.h"

namespace stoker::offload::cpu {

enum class Scales { kOrdinary, kAnyBits };
enum class Zeros { kEight, kStored };

// An expert with random contents; each part ends where a page ends that cannot be read after.
class RandomExpert {
 public:
  RandomExpert(int hidden, int intermediate, int group, ScaleType type, Scales scales, int seed,
               Zeros zeros = Zeros::kEight)
      : random_(seed) {
    expert.hidden = hidden;
    expert.intermediate = intermediate;
    expert.group = group;
    expert.scale_type = type;
    expert.gate = Matrix(intermediate, hidden, scales);
    expert.up = Matrix(intermediate, hidden, scales);
    expert.down = Matrix(hidden, intermediate, scales);
    if (zeros == Zeros::kEight) return;
    // Gate and up as interleaved rows of one tensor, down as a part that starts at row 3.
    expert.gate.zero_stride = expert.up.zero_stride = size_t(hidden / group) * 4;
    expert.gate.zeros = expert.up.zeros = Words((2 * intermediate + 7) / 8, hidden / group);
    expert.gate.zero_row_step = expert.up.zero_row_step = 2;
    expert.up.zero_row = 1;
    expert.down.zero_stride = size_t(intermediate / group) * 4;
    expert.down.zeros = Words((hidden + 3 + 7) / 8, intermediate / group);
    expert.down.zero_row = 3;
  }
  ~RandomExpert() {
    for (const auto& [data, bytes] : maps_) munmap(data, bytes);
  }

  Expert expert;

 private:
  char* AtPageEnd(size_t bytes) {
    const size_t page = sysconf(_SC_PAGESIZE);
    const size_t whole = (bytes + page - 1) / page * page;
    char* base = static_cast<char*>(
        mmap(nullptr, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(base, MAP_FAILED);
    EXPECT_EQ(mprotect(base + whole, page, PROT_NONE), 0);
    maps_.emplace_back(base, whole + page);
    return base + whole - bytes;
  }

  const char* Words(int rows, int columns) {
    char* words = AtPageEnd(size_t(rows) * columns * 4);
    for (int i = 0; i < rows * columns * 4; ++i) words[i] = static_cast<char>(random_());
    return words;
  }

  uint32_t ScaleBits(Scales scales) {
    const uint32_t any = static_cast<uint32_t>(random_());
    if (scales == Scales::kAnyBits) return any;
    const float value = 0.002f + 0.01f * (any >> 8) * 0x1p-24f;
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    // 0.002 to 0.012 in fp16: normal, exponent rebased by 112.
    if (expert.scale_type == ScaleType::kFp16) return (bits >> 13) - (112u << 10);
    return expert.scale_type == ScaleType::kBf16 ? bits >> 16 : bits;
  }

  PackedMatrix Matrix(int rows, int columns, Scales scales) {
    const size_t scale_bytes = expert.scale_type == ScaleType::kFp32 ? 4 : 2;
    const size_t count = static_cast<size_t>(columns / expert.group);
    PackedMatrix m;
    m.weight_stride = columns / 2;
    m.scale_stride = count * scale_bytes;
    char* weights = AtPageEnd(rows * m.weight_stride);
    for (size_t i = 0; i < rows * m.weight_stride; ++i) weights[i] = static_cast<char>(random_());
    char* s = AtPageEnd(rows * m.scale_stride);
    for (size_t i = 0; i < rows * count; ++i) {
      const uint32_t bits = ScaleBits(scales);
      std::memcpy(s + i * scale_bytes, &bits, scale_bytes);
    }
    m.weights = reinterpret_cast<uint8_t*>(weights);
    m.scales = s;
    return m;
  }

  std::mt19937 random_;
  std::vector<std::pair<char*, size_t>> maps_;
};

inline std::vector<float> RandomRows(int tokens, int columns, float sigma, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, sigma);
  std::vector<float> rows(static_cast<size_t>(tokens) * columns);
  for (float& x : rows) x = normal(random);
  return rows;
}

inline std::vector<char> Prepare(const std::vector<float>& rows, int columns, int group) {
  const size_t stride = PreparedBytes(columns, group);
  std::vector<char> prepared(rows.size() / columns * stride);
  for (size_t t = 0; t < rows.size() / columns; ++t) {
    QuantizeRow(rows.data() + t * columns, columns, group, prepared.data() + t * stride);
  }
  return prepared;
}

inline std::vector<float> RunTilesOn(const PreparedRows& in, TileFunction tile, const Expert& e,
                                     int rows, int step) {
  std::vector<float> out(static_cast<size_t>(in.tokens) * rows, -1.0f);
  for (int begin = 0; begin < rows; begin += step) {
    tile(e, in, begin, std::min(begin + step, rows), {out.data(), static_cast<size_t>(rows)});
  }
  return out;
}

inline std::vector<float> RunTiles(TileFunction tile, const Expert& e,
                                   const std::vector<char>& prepared, int columns, int rows,
                                   int tokens, int step) {
  return RunTilesOn({prepared.data(), PreparedBytes(columns, e.group), tokens}, tile, e, rows,
                    step);
}

inline std::vector<float> RunFp32Tiles(TileFunction tile, const Expert& e,
                                       const std::vector<float>& x, int columns, int rows,
                                       int step) {
  return RunTilesOn({reinterpret_cast<const char*>(x.data()), columns * sizeof(float),
                     static_cast<int>(x.size()) / columns},
                    tile, e, rows, step);
}

}  // namespace stoker::offload::cpu
