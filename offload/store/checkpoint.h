// An INT4 compressed-tensors checkpoint ("pack-quantized") that is used where it lies: for each
// expert the byte ranges of its weights, scales and zero points, and nothing converted.
//
//   STOKER_ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(directory));
//   const ExpertExtents& extents = checkpoint->extents(layer, expert);
//
// Or a .stoker file (sidecar.h), by its name: then an expert is one record, read by chunks that
// have checksums, and its extents say only where it stands and how many bytes a part has.
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
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/io/file.h"
#include "offload/store/expert_shape.h"
#include "offload/store/record.h"
#include "offload/store/sidecar.h"
#include "offload/store/tensor_set.h"

namespace stoker::offload {

// A byte range of a file of the checkpoint; no bytes: the part is absent.
struct Extent {
  int file = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct ExpertExtents {
  std::array<Extent, kParts> parts;
  Extent record;  // of a .stoker file; else no bytes
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
  // How records are laid out; nullptr where experts are not records.
  const RecordLayout* record_layout() const { return record_ ? &*record_ : nullptr; }
  // DataLoss unless `bytes`, chunk `chunk` of the expert's record, have their checksum.
  absl::Status CheckChunk(int layer_index, int expert, int chunk, absl::string_view bytes) const;
  // The sum of the expert's parts in the source of a .stoker file (PartsChecksum).
  uint32_t parts_checksum(int layer_index, int expert) const;
  // The architecture whose names were found.
  const std::string& architecture() const { return architecture_; }

 private:
  Checkpoint() = default;
  static absl::StatusOr<std::unique_ptr<Checkpoint>> OpenSidecar(const std::string& path,
                                                                 const FileOpener& opener);
  absl::Status AddLayer(const TensorSet& tensors, const Scheme& scheme, int layer);

  std::vector<OpenFile> files_;
  ExpertShape shape_;
  std::vector<int> layers_;
  int experts_ = 0;
  std::vector<ExpertExtents> extents_;
  std::string architecture_;
  std::optional<RecordLayout> record_;
  std::vector<uint32_t> checksums_;  // SidecarIndex::checksums
};

}  // namespace stoker::offload
