#include "offload/store/record.h"

#include <algorithm>
#include <cstring>

namespace stoker::offload {
namespace {

int Projection(int part) { return part % 3; }

// Calls fn(part, offset in the part, offset in the record, bytes) for each piece.
template <typename Fn>
void ForEachPiece(const RecordLayout& layout, const Fn& fn) {
  for (const RecordLayout::Tile& tile : layout.tiles) {
    const bool fc2 = &tile - layout.tiles.data() >= layout.fc1_tiles;
    for (int part = 0; part < kParts; ++part) {
      if ((Projection(part) == kDown) != fc2) continue;
      fn(part, layout.Bytes(part, tile.first_row), tile.position[part],
         layout.Bytes(part, tile.rows));
    }
  }
}

}  // namespace

RecordLayout::RecordLayout(const ExpertShape& shape)
    : intermediate(shape.intermediate), hidden(shape.hidden) {
  for (int part = 0; part < kParts; ++part) {
    const uint64_t k = Projection(part) == kDown ? shape.intermediate : shape.hidden;
    const uint64_t blocks = k / shape.group;
    if (part < kGateScale) {
      bytes_of_8_rows[part] = 8 * k / 2;
    } else if (IsScale(part)) {
      bytes_of_8_rows[part] = 8 * blocks * ScaleBytes(shape.scale_type);
    } else if (shape.zero_points) {
      bytes_of_8_rows[part] = blocks * sizeof(uint32_t);
    }
  }
  const auto add_phase = [&](bool fc2, int rows, int tile_rows) {
    for (int row = 0; row < rows; row += tile_rows) {
      if (row == 0 || bytes - chunks.back().offset >= kRecordChunkBytes) {
        bytes = (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
        const int first = static_cast<int>(tiles.size());
        chunks.push_back({bytes, 0, first, first});
      }
      Tile tile{row, std::min(tile_rows, rows - row), {}};
      for (int part = 0; part < kParts; ++part) {
        if ((Projection(part) == kDown) != fc2) continue;
        tile.position[part] = bytes;
        bytes += Bytes(part, tile.rows);
      }
      tiles.push_back(tile);
      chunks.back().end_tile = static_cast<int>(tiles.size());
      chunks.back().bytes = (bytes - chunks.back().offset + kRecordAlignment - 1) /
                            kRecordAlignment * kRecordAlignment;
    }
  };
  add_phase(false, intermediate, kFc1TileRows);
  fc1_tiles = static_cast<int>(tiles.size());
  add_phase(true, hidden, kFc2TileRows);
  fc2_tiles = static_cast<int>(tiles.size()) - fc1_tiles;
  bytes = chunks.back().offset + chunks.back().bytes;
}

uint64_t RecordLayout::PartBytes(int part) const {
  return Bytes(part, Projection(part) == kDown ? hidden : intermediate);
}

void RecordLayout::Gather(absl::Span<const char> record, ExpertBytes* parts) const {
  for (int part = 0; part < kParts; ++part) (*parts)[part].resize(PartBytes(part));
  ForEachPiece(*this, [&](int part, uint64_t in_part, uint64_t in_record, uint64_t size) {
    std::memcpy((*parts)[part].data() + in_part, record.data() + in_record, size);
  });
}

void RecordLayout::Scatter(const ExpertBytes& parts, absl::Span<char> record) const {
  std::memset(record.data(), 0, record.size());
  ForEachPiece(*this, [&](int part, uint64_t in_part, uint64_t in_record, uint64_t size) {
    std::memcpy(record.data() + in_record, parts[part].data() + in_part, size);
  });
}

}  // namespace stoker::offload
