// How an expert gets into a slot: the regions of a slot, the reads that fill them, and which tiles
// wait for which read.
//
// Every extent has its own region, at an address congruent to its file offset modulo 4 KiB (the
// slot itself is aligned to 4 KiB). Scales and zero points are read first, one read an extent;
// weights are cut at multiples of `chunk_bytes` of the file offset, so no byte is written by two
// reads. Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "offload/dispatch/call_state.h"
#include "offload/store/checkpoint.h"

namespace stoker::offload {

inline constexpr uint64_t kPage = 4096;
struct SlotLayout {
  explicit SlotLayout(const ExpertExtents& any_expert);
  // Where the first byte of a part lies in the slot.
  uint64_t Position(int part, const Extent& extent) const {
    return region[part] + extent.offset % kPage;
  }
  std::array<uint64_t, kParts> region;
  uint64_t slot_bytes = 0;
};

struct Read {
  int part = 0;  // kParts: a chunk of a record
  int file = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t position = 0;  // in the slot
};

struct LoadPlan {
  std::vector<Read> reads;
  TaskPlan tiles;
};

// The tiles of an expert that is there as a whole.
TaskPlan ResidentPlan(const ExpertShape& shape);

LoadPlan MakeLoadPlan(const ExpertShape& shape, const ExpertExtents& extents,
                      const SlotLayout& layout, uint64_t chunk_bytes);

}  // namespace stoker::offload
