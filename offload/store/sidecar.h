// The .stoker file: experts of a checkpoint as records that one aligned read fills.
//
//   [header, 4 KiB][layers, u32 each][checksums, u32 each][zeros to 4 KiB][record][record]...
//
// All integers little endian. Record (layer_index, expert) stands at data_begin + (layer_index *
// experts + expert) * record bytes (record.h). Checksums are CRC-32C: for each expert one a chunk,
// then one of its parts in the order of Part, as they were in the source. The header ends with
// checksums of the tables and of itself, so a file is complete or refused. Version 1.
//
// Pure functions but for ReadSidecarIndex. Files are untrusted: sizes are checked against the file
// before anything is allocated. Errors are InvalidArgument or DataLoss and say what to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "offload/io/file.h"
#include "offload/store/expert_shape.h"
#include "offload/store/record.h"

namespace stoker::offload {

inline constexpr uint32_t kSidecarVersion = 1;
inline constexpr uint64_t kSidecarHeaderBytes = 4096;
inline constexpr char kSidecarSuffix[] = ".stoker";

struct SidecarIndex {
  ExpertShape shape;  // not interleaved
  std::string architecture;
  std::vector<int> layers;
  int experts = 0;
  uint64_t source = 0;  // fingerprint of what was packed
  bool complete = false;
  // [layer_index * experts + expert][chunk], the sum of the parts last.
  std::vector<uint32_t> checksums;

  size_t ChecksumsOfExpert(const RecordLayout& layout) const { return layout.chunks.size() + 1; }
  uint64_t DataBegin(const RecordLayout& layout) const;
  uint64_t FileBytes(const RecordLayout& layout) const;
};

// The bytes before the first record.
std::string EncodeSidecarIndex(const SidecarIndex& index, const RecordLayout& layout);

// The sum of an expert's parts, in the order of Part.
uint32_t PartsChecksum(const ExpertBytes& parts);

// `incomplete_too`: accepts what a pack that was interrupted left.
absl::StatusOr<SidecarIndex> ReadSidecarIndex(const File& file, bool incomplete_too = false);

// The part of ReadSidecarIndex that looks at no file: the header of a file of `file_size` bytes.
// The tables are empty.
absl::StatusOr<SidecarIndex> ParseSidecarHeader(absl::string_view header, uint64_t file_size);

}  // namespace stoker::offload
