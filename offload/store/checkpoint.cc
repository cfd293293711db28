#include "offload/store/checkpoint.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "offload/store/crc32c.h"
#include "offload/store/expert_names.h"

namespace stoker::offload {
namespace {

using Matrix = TensorSet::Matrix;

constexpr uint64_t kMaxExtent = 1ull << 31;
constexpr uint64_t kMaxSide = 1 << 20;
constexpr const char* kSuffixes[] = {"weight_packed", "weight_scale", "weight_zero_point"};

absl::Status Refuse(absl::string_view what, absl::string_view remedy) {
  return absl::InvalidArgumentError(absl::StrCat(what, "; ", remedy));
}

absl::StatusOr<ScaleType> ScaleTypeOf(const Matrix& matrix) {
  if (matrix.type == "BF16") return ScaleType::kBf16;
  if (matrix.type == "F16") return ScaleType::kFp16;
  if (matrix.type == "F32") return ScaleType::kFp32;
  return Refuse(absl::StrCat("tensor '", matrix.name, "' has type ", matrix.type),
                "scales are BF16, F16 or F32");
}

// Tensors beside the matrices that change what an expert computes.
absl::Status RefuseUnknownParts(const TensorSet& tensors, const Scheme& scheme) {
  for (const auto& [layer, experts] : tensors.layers) {
    for (const auto& [expert, projections] : experts) {
      for (const TensorsBySuffix& suffixes : projections) {
        for (const auto& [suffix, found] : suffixes) {
          const std::string tensor = absl::StrCat("tensor '", found.tensor.name, "'");
          if (suffix == "weight_g_idx") {
            return Refuse(absl::StrCat(tensor, " permutes the columns of the weights"),
                          "quantise without activation order");
          }
          if (suffix == "weight_zero_point" && !scheme.zero_points) {
            return Refuse(absl::StrCat(tensor, " is a zero point, but config.json says symmetric"),
                          "take the config.json that belongs to the files");
          }
          if (suffix == "bias") return Refuse(tensor, "experts with biases are not supported");
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMatrix(const Matrix& matrix, uint64_t rows, uint64_t columns, int part) {
  const bool words = !IsScale(part);
  if ((words && matrix.type != "I32") || matrix.rows != rows || matrix.columns != columns) {
    return Refuse(
        absl::StrCat("tensor '", matrix.name, "' is ", matrix.type, " [", matrix.rows, ", ",
                     matrix.columns, "] an expert"),
        absl::StrCat("expected ", words ? "I32" : "a scale", " [", rows, ", ", columns, "]"));
  }
  const uint64_t alignment = matrix.type == "I32" || matrix.type == "F32" ? 4 : 2;
  if (matrix.offset % alignment != 0 || matrix.bytes > kMaxExtent) {
    return Refuse(absl::StrCat("tensor '", matrix.name, "': ", matrix.bytes, " bytes at offset ",
                               matrix.offset),
                  "expected a multiple of its element size, and at most 2 GiB");
  }
  return absl::OkStatus();
}

// Finds the parts of experts and their shape; all experts of a checkpoint go through one.
class Resolver {
 public:
  Resolver(const TensorSet& tensors, const Scheme& scheme) : tensors_(tensors), scheme_(scheme) {}

  absl::Status Resolve(int layer, int expert, ExpertShape* shape, ExpertExtents* extents) {
    const bool fused = tensors_.Has(layer, expert, kProjectGateUp, kSuffixes[0]);
    shape->group = scheme_.group;
    shape->zero_points = scheme_.zero_points;
    shape->interleaved = fused && scheme_.interleaved;
    shape->swiglu = scheme_.swiglu;
    STOKER_RETURN_IF_ERROR(SetSizes(layer, expert, fused, shape));
    for (int kind = 0; kind < (scheme_.zero_points ? 3 : 2); ++kind) {
      const auto add = [&](int projection, uint64_t rows, uint64_t k) {
        return Add(layer, expert, projection, kind, rows, k, shape, extents);
      };
      const uint64_t i = shape->intermediate;
      if (fused) {
        STOKER_RETURN_IF_ERROR(add(kProjectGateUp, 2 * i, shape->hidden));
      } else {
        STOKER_RETURN_IF_ERROR(add(kProjectGate, i, shape->hidden));
        STOKER_RETURN_IF_ERROR(add(kProjectUp, i, shape->hidden));
      }
      STOKER_RETURN_IF_ERROR(add(kProjectDown, shape->hidden, i));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status SetSizes(int layer, int expert, bool fused, ExpertShape* shape) {
    STOKER_ASSIGN_OR_RETURN(
        const Matrix gate,
        tensors_.Find(layer, expert, fused ? kProjectGateUp : kProjectGate, kSuffixes[0]));
    if (gate.rows == 0 || gate.columns == 0 || gate.rows > 2 * kMaxSide ||
        gate.columns > kMaxSide / 8 || (fused && gate.rows % 2 != 0)) {
      return Refuse(
          absl::StrCat("tensor '", gate.name, "' is [", gate.rows, ", ", gate.columns, "]"),
          "is not a matrix of a supported size");
    }
    shape->intermediate = static_cast<int>(fused ? gate.rows / 2 : gate.rows);
    shape->hidden = static_cast<int>(gate.columns * 8);
    if (shape->hidden % shape->group != 0 || shape->intermediate % shape->group != 0) {
      return Refuse(
          absl::StrCat("tensor '", gate.name, "': ", shape->intermediate, " x ", shape->hidden),
          absl::StrCat("both must be multiples of the group size ", shape->group));
    }
    return absl::OkStatus();
  }

  // `kind`: 0 weights, 1 scales, 2 zero points.
  absl::Status Add(int layer, int expert, int projection, int kind, uint64_t rows, uint64_t k,
                   ExpertShape* shape, ExpertExtents* extents) {
    const bool fused = projection == kProjectGateUp;
    const int part = 3 * kind + (fused ? 0 : projection);
    STOKER_ASSIGN_OR_RETURN(const Matrix matrix,
                            tensors_.Find(layer, expert, projection, kSuffixes[kind]));
    STOKER_RETURN_IF_ERROR(
        CheckMatrix(matrix, kind == 2 ? rows / 8 : rows, k / (kind == 0 ? 8 : shape->group), part));
    if (kind == 1) {
      STOKER_ASSIGN_OR_RETURN(const ScaleType type, ScaleTypeOf(matrix));
      if (part != kGateScale && type != shape->scale_type) {
        return Refuse(absl::StrCat("tensor '", matrix.name, "'"),
                      "the scales of an expert have different types");
      }
      shape->scale_type = type;
    }
    Extent extent{matrix.file, matrix.offset, matrix.bytes};
    if (fused && !shape->interleaved) {
      extent.bytes /= 2;
      extents->parts[part + kUp] = {extent.file, extent.offset + extent.bytes, extent.bytes};
    }
    extents->parts[part] = extent;
    return absl::OkStatus();
  }

  const TensorSet& tensors_;
  const Scheme& scheme_;
};

}  // namespace

uint64_t ExpertExtents::bytes() const {
  uint64_t sum = 0;
  for (const Extent& extent : parts) sum += extent.bytes;
  return sum;
}

absl::Status Checkpoint::AddLayer(const TensorSet& tensors, const Scheme& scheme, int layer) {
  Resolver resolver(tensors, scheme);
  for (int expert = 0; expert < experts_; ++expert) {
    ExpertShape shape;
    ExpertExtents extents;
    STOKER_RETURN_IF_ERROR(resolver.Resolve(layer, expert, &shape, &extents));
    if (extents_.empty()) shape_ = shape;
    if (shape != shape_) {
      return Refuse(absl::StrCat("layer ", layer, ", expert ", expert),
                    "its shape or scale type is not that of the first expert");
    }
    extents_.push_back(extents);
  }
  layers_.push_back(layer);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& directory,
                                                             const FileOpener& opener) {
  if (absl::EndsWith(directory, kSidecarSuffix)) return OpenSidecar(directory, opener);
  STOKER_ASSIGN_OR_RETURN(const auto config, opener(directory + "/config.json"));
  STOKER_ASSIGN_OR_RETURN(const Scheme scheme, ReadScheme(*config));
  if (scheme.format != Format::kPackQuantized) {
    return Refuse(absl::StrCat(directory, " is in the format ", FormatName(scheme.format)),
                  "it cannot be read in place: convert it with stoker offload pack");
  }
  STOKER_ASSIGN_OR_RETURN(TensorSet tensors, OpenTensorSet(directory, opener));
  STOKER_RETURN_IF_ERROR(RefuseUnknownParts(tensors, scheme));
  auto checkpoint = std::unique_ptr<Checkpoint>(new Checkpoint());
  checkpoint->architecture_ = tensors.architecture;
  for (const auto& [layer, experts] : tensors.layers) {
    checkpoint->experts_ = std::max(checkpoint->experts_, tensors.Experts(layer));
  }
  for (const auto& [layer, experts] : tensors.layers) {
    const absl::Status added = checkpoint->AddLayer(tensors, scheme, layer);
    if (!added.ok()) {
      return absl::Status(added.code(), absl::StrCat(directory, ": ", added.message()));
    }
  }
  checkpoint->files_ = std::move(tensors.files);
  return checkpoint;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::OpenSidecar(const std::string& path,
                                                                    const FileOpener& opener) {
  STOKER_ASSIGN_OR_RETURN(auto file, opener(path));
  STOKER_ASSIGN_OR_RETURN(const FileIdentity identity, file->Identity());
  STOKER_ASSIGN_OR_RETURN(SidecarIndex index, ReadSidecarIndex(*file));
  auto checkpoint = std::unique_ptr<Checkpoint>(new Checkpoint());
  checkpoint->shape_ = index.shape;
  checkpoint->experts_ = index.experts;
  checkpoint->architecture_ = index.architecture;
  const RecordLayout& layout = checkpoint->record_.emplace(index.shape);
  uint64_t offset = index.DataBegin(layout);
  for (size_t i = 0; i < index.layers.size() * index.experts; ++i, offset += layout.bytes) {
    ExpertExtents extents;
    extents.record = {0, offset, layout.bytes};
    for (int part = 0; part < kParts; ++part) {
      extents.parts[part] = {0, offset, layout.PartBytes(part)};
    }
    checkpoint->extents_.push_back(extents);
  }
  checkpoint->layers_ = std::move(index.layers);
  checkpoint->checksums_ = std::move(index.checksums);
  checkpoint->files_.push_back({std::move(file), identity});
  return checkpoint;
}

absl::Status Checkpoint::CheckChunk(int layer_index, int expert, int chunk,
                                    absl::string_view bytes) const {
  const size_t row = static_cast<size_t>(layer_index) * experts_ + expert;
  const uint32_t wanted = checksums_[row * (record_->chunks.size() + 1) + chunk];
  const uint32_t found = Crc32c(bytes);
  if (found == wanted) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      files_[0].file->path(), ": chunk ", chunk, " has the checksum ", absl::Hex(found),
      " instead of ", absl::Hex(wanted), ": the file is damaged; pack it again"));
}

uint32_t Checkpoint::parts_checksum(int layer_index, int expert) const {
  const size_t row = static_cast<size_t>(layer_index) * experts_ + expert;
  return checksums_[(row + 1) * (record_->chunks.size() + 1) - 1];
}

absl::Status Checkpoint::CheckFile(int index) const {
  return CheckUnchanged(*files_[index].file, files_[index].at_open);
}

}  // namespace stoker::offload
