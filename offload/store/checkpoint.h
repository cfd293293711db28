// A symmetric INT4 compressed-tensors checkpoint ("pack-quantized") that is used where it lies: for
// each expert the six byte ranges of its weights and scales, and nothing converted.
//
//   STOKER_ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(directory));
//   const ExpertExtents& extents = checkpoint->extents(layer, expert);
//
// Reads <directory>/config.json and every *.safetensors file. Immutable after Open, thread-safe.
// All that it returns was checked against the files: ranges inside the file, one shape and one
// group size for all experts, no expert missing. Errors name the file or tensor and what is
// supported; an unknown naming lists names that were found. Refused with the reason: other formats
// or widths, asymmetric zero points, activation order. Limits: 2^16 files, layers and experts each.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/io/file.h"

namespace stoker::offload {

enum class ScaleType { kBf16, kFp16, kFp32 };

struct ExpertShape {
  int hidden = 0;
  int intermediate = 0;
  int group = 0;  // weights that share a scale
  ScaleType scale_type = ScaleType::kBf16;
  bool operator==(const ExpertShape&) const = default;
};

// A byte range of a file of the checkpoint.
struct Extent {
  int file = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

enum Part { kGate, kUp, kDown, kGateScale, kUpScale, kDownScale, kParts };
const char* PartName(int part);

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
  struct OpenFile {
    std::unique_ptr<File> file;
    FileIdentity at_open;
  };
  Checkpoint() = default;

  std::vector<OpenFile> files_;
  ExpertShape shape_;
  std::vector<int> layers_;
  int experts_ = 0;
  std::vector<ExpertExtents> extents_;
  std::string architecture_;
};

}  // namespace stoker::offload
