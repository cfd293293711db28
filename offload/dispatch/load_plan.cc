#include "offload/dispatch/load_plan.h"

#include <algorithm>
#include <numeric>

namespace stoker::offload {
namespace {

int Tiles(int rows, int tile_rows) { return (rows + tile_rows - 1) / tile_rows; }

LoadPlan RecordPlan(const ExpertShape& shape, const Extent& record) {
  const RecordLayout layout(shape);
  LoadPlan plan;
  plan.tiles.fc1_tiles = layout.fc1_tiles;
  plan.tiles.fc2_tiles = layout.fc2_tiles;
  for (const RecordLayout::Chunk& chunk : layout.chunks) {
    plan.reads.push_back(
        {kParts, record.file, record.offset + chunk.offset, chunk.bytes, chunk.offset});
    std::vector<int>& tiles = plan.tiles.tiles_of_chunk.emplace_back();
    for (int tile = chunk.first_tile; tile < chunk.end_tile; ++tile) tiles.push_back(tile);
  }
  return plan;
}

}  // namespace

SlotLayout::SlotLayout(const ExpertExtents& any_expert) : region{} {
  if (any_expert.record.bytes != 0) {
    slot_bytes = any_expert.record.bytes;
    return;
  }
  for (int part = 0; part < kParts; ++part) {
    region[part] = slot_bytes;
    if (any_expert.parts[part].bytes == 0) continue;
    // A page for the congruent start, and the last page whole.
    slot_bytes += (any_expert.parts[part].bytes + 2 * kPage - 1) / kPage * kPage;
  }
}

TaskPlan ResidentPlan(const ExpertShape& shape) {
  return {Tiles(shape.intermediate, kFc1TileRows), Tiles(shape.hidden, kFc2TileRows), {}};
}

LoadPlan MakeLoadPlan(const ExpertShape& shape, const ExpertExtents& extents,
                      const SlotLayout& layout, uint64_t chunk_bytes) {
  if (extents.record.bytes != 0) return RecordPlan(shape, extents.record);
  LoadPlan plan;
  plan.tiles = ResidentPlan(shape);
  const auto add = [&](int part, uint64_t begin, uint64_t end, int first_tile, int last_tile) {
    const Extent& extent = extents.parts[part];
    plan.reads.push_back({part, extent.file, extent.offset + begin, end - begin,
                          layout.Position(part, extent) + begin});
    std::vector<int> tiles(last_tile - first_tile + 1);
    const int base = part % kGateScale == kDown ? plan.tiles.fc1_tiles : 0;
    std::iota(tiles.begin(), tiles.end(), base + first_tile);
    plan.tiles.tiles_of_chunk.push_back(std::move(tiles));
  };
  for (int part = kGateScale; part < kParts; ++part) {
    if (extents.parts[part].bytes == 0) continue;
    const int tiles = part % kGateScale == kDown ? plan.tiles.fc2_tiles : plan.tiles.fc1_tiles;
    add(part, 0, extents.parts[part].bytes, 0, tiles - 1);
  }
  for (const int part : {kGate, kUp, kDown}) {
    const Extent& extent = extents.parts[part];
    // Of gate and up together where their rows alternate.
    const uint64_t row =
        (part == kDown ? shape.intermediate : shape.hidden * (shape.interleaved ? 2 : 1)) / 2;
    const int tile_rows = part == kDown ? kFc2TileRows : kFc1TileRows;
    uint64_t begin = 0;
    while (begin < extent.bytes) {
      const uint64_t cut = (extent.offset + begin) / chunk_bytes * chunk_bytes + chunk_bytes;
      const uint64_t end = std::min(extent.bytes, cut - extent.offset);
      add(part, begin, end, static_cast<int>(begin / row) / tile_rows,
          static_cast<int>((end - 1) / row) / tile_rows);
      begin = end;
    }
  }
  return plan;
}

}  // namespace stoker::offload
