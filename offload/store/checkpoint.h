// An INT4 compressed-tensors checkpoint ("pack-quantized") that is used where it lies: for each
// expert the byte ranges of its weights, scales and zero points, and nothing converted.
//
//   STOKER_ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(directory));
//   const ExpertExtents& extents = checkpoint->extents(layer, expert);
//
// Reads <directory>/config.json and the *.safetensors files (tensor_set.h). Immutable after Open,
// thread-safe. All that it returns was checked against the files: ranges inside the file, one shape
// and one group size for all experts, no expert missing. Errors name the file or tensor and what is
// supported; an unknown naming lists names that were found. Refused with the reason: other formats
// or widths, activation order, biases. Limits: 2^16 files, layers and experts each.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/io/file.h"
#include "offload/store/scheme.h"
#include "offload/store/tensor_set.h"

namespace stoker::offload {

enum class ScaleType { kBf16, kFp16, kFp32 };

struct ExpertShape {
  int hidden = 0;
  int intermediate = 0;
  int group = 0;  // weights that share a scale
  ScaleType scale_type = ScaleType::kBf16;
  bool zero_points = false;  // stored; else every zero is 8
  // Gate and up are one matrix, rows gate 0, up 0, gate 1, ...: the parts of gate hold it, those of
  // up are empty.
  bool interleaved = false;
  SwigluParameters swiglu = {};
  bool operator==(const ExpertShape&) const = default;
};

// A byte range of a file of the checkpoint; no bytes: the part is absent.
struct Extent {
  int file = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Weights [rows, columns / 2] bytes, low nibble first; scales [rows, columns / group]; zero points
// [rows / 8, columns / group] little-endian 32-bit words, row r in nibble r % 8 of its word. A part
// modulo 3 is its projection.
enum Part {
  kGate,
  kUp,
  kDown,
  kGateScale,
  kUpScale,
  kDownScale,
  kGateZero,
  kUpZero,
  kDownZero,
  kParts
};
const char* PartName(int part);
inline bool IsScale(int part) { return part >= kGateScale && part < kGateZero; }
size_t ScaleBytes(ScaleType type);
const char* ScaleTypeName(ScaleType type);

struct ExpertExtents {
  std::array<Extent, kParts> parts;
  uint64_t bytes() const;
};

class Checkpoint {
 public:
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& directory,
                                                          const FileOpener& opener = OpenPosixFile);

  const ExpertShape& shape() const { return shape_; }
  // The layers that have experts, by the number that the checkpoint gives them.
  const std::vector<int>& layers() const { return layers_; }
  int experts() const { return experts_; }
  // `layer_index` counts the entries of layers().
  const ExpertExtents& extents(int layer_index, int expert) const {
    return extents_[static_cast<size_t>(layer_index) * experts_ + expert];
  }
  int files() const { return static_cast<int>(files_.size()); }
  const File& file(int index) const { return *files_[index].file; }
  // FailedPrecondition if a file was replaced or changed since Open.
  absl::Status CheckFile(int index) const;
  // The architecture whose names were found.
  const std::string& architecture() const { return architecture_; }

 private:
  Checkpoint() = default;
  absl::Status AddLayer(const TensorSet& tensors, const Scheme& scheme, int layer);

  std::vector<OpenFile> files_;
  ExpertShape shape_;
  std::vector<int> layers_;
  int experts_ = 0;
  std::vector<ExpertExtents> extents_;
  std::string architecture_;
};

}  // namespace stoker::offload
