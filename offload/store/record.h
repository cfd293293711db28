// How an expert lies in a .stoker file: chunks of whole row tiles, each tile with its scales and
// zero points, so that one read makes tiles runnable.
//
//   const RecordLayout layout(shape);
//   layout.Gather(record, &parts);        // and Scatter: the other way
//
// A tile of FC1 is kFc1TileRows rows of gate and of up, one of FC2 kFc2TileRows of down; FC1's
// stand first. Within a tile: weights of gate, of up, scales, zero points, in the order of Part. A
// chunk is a run of tiles of one phase of at least kRecordChunkBytes (the last of a phase may be
// smaller), padded with zeros to kRecordAlignment. Pure functions of the shape.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "offload/store/expert_shape.h"

namespace stoker::offload {

// Rows of a tile: about 100 KiB of weights for common shapes, so that handing one out costs little.
inline constexpr int kFc1TileRows = 64;
inline constexpr int kFc2TileRows = 256;
inline constexpr uint64_t kRecordAlignment = 4096;
inline constexpr uint64_t kRecordChunkBytes = 256 << 10;

// The bytes of an expert's parts as Part describes them, gate and up apart.
using ExpertBytes = std::array<std::string, kParts>;

struct RecordLayout {
  struct Tile {
    int first_row = 0;
    int rows = 0;
    std::array<uint64_t, kParts> position;  // of its first row in the record
  };
  struct Chunk {
    uint64_t offset = 0;  // in the record
    uint64_t bytes = 0;
    int first_tile = 0;  // counts FC1's, then FC2's
    int end_tile = 0;
  };

  // `shape` is not interleaved.
  explicit RecordLayout(const ExpertShape& shape);

  // Bytes of `rows` rows of a part, a multiple of eight (zero points of eight rows share words).
  uint64_t Bytes(int part, int rows) const { return rows / 8 * bytes_of_8_rows[part]; }
  uint64_t PartBytes(int part) const;
  // Where a part's row 0 would lie, were all its rows laid out as those of this tile. May lie
  // before the record: only rows of the tile may be reached through it.
  const char* Base(const char* record, int tile, int part) const {
    return record + tiles[tile].position[part] - Bytes(part, tiles[tile].first_row);
  }

  void Gather(absl::Span<const char> record, ExpertBytes* parts) const;
  void Scatter(const ExpertBytes& parts, absl::Span<char> record) const;

  std::array<uint64_t, kParts> bytes_of_8_rows{};  // 0 where the part is absent
  int fc1_tiles = 0;
  int fc2_tiles = 0;
  int intermediate = 0;
  int hidden = 0;
  std::vector<Tile> tiles;
  std::vector<Chunk> chunks;
  uint64_t bytes = 0;  // of a record
};

}  // namespace stoker::offload
