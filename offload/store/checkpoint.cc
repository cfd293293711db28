#include "offload/store/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "offload/store/expert_names.h"
#include "offload/store/safetensors.h"

namespace stoker::offload {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxConfigBytes = 16ull << 20;
constexpr size_t kMaxFiles = 1 << 16;
constexpr uint64_t kMaxExtent = 1ull << 31;

struct Found {
  Tensor tensor;
  int file = 0;
};

// Projection and kind of one expert: index is a Part.
using Parts = std::array<Found, kParts>;

struct Scan {
  std::map<std::pair<int, int>, Parts> experts;  // (layer, expert)
  std::string architecture;
  std::vector<std::string> other_names;  // a few, for the message
};

absl::Status Refuse(absl::string_view what, absl::string_view remedy) {
  return absl::InvalidArgumentError(absl::StrCat(what, "; ", remedy));
}

// The scheme of config.json that the kernels know, or why not.
absl::Status CheckScheme(const File& file, int* group) {
  STOKER_ASSIGN_OR_RETURN(const FileIdentity identity, file.Identity());
  if (identity.size > kMaxConfigBytes) return Refuse(file.path(), "more than 16 MiB");
  std::string text(identity.size, '\0');
  STOKER_RETURN_IF_ERROR(ReadFully(file, 0, absl::MakeSpan(text)));
  const Json config = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const Json& quantization = config.is_object() && config.contains("quantization_config")
                                 ? config["quantization_config"]
                                 : Json();
  if (!quantization.is_object() ||
      quantization.value("quant_method", Json()) != "compressed-tensors") {
    return Refuse(absl::StrCat(file.path(),
                               ": quantization_config.quant_method is not "
                               "compressed-tensors"),
                  "only that is read in place");
  }
  if (quantization.value("format", Json()) != "pack-quantized") {
    return Refuse(absl::StrCat(file.path(), ": quantization format is not pack-quantized"),
                  "only INT4 pack-quantized experts are supported");
  }
  const Json groups = quantization.value("config_groups", Json());
  if (!groups.is_object() || groups.size() != 1) {
    return Refuse(absl::StrCat(file.path(), ": needs exactly one entry in config_groups"),
                  "mixed schemes are not supported");
  }
  const Json weights =
      groups.begin()->is_object() ? groups.begin()->value("weights", Json()) : Json();
  if (!weights.is_object() || weights.value("num_bits", Json()) != 4 ||
      weights.value("type", Json("int")) != "int") {
    return Refuse(absl::StrCat(file.path(), ": weights are not 4-bit integers"), "use INT4");
  }
  if (weights.value("symmetric", Json(true)) != true) {
    return Refuse(absl::StrCat(file.path(), ": asymmetric weights (zero points)"),
                  "quantise symmetrically");
  }
  const Json order = weights.value("actorder", Json());
  if (!order.is_null() && order != false && order != "weight" && order != "static") {
    return Refuse(absl::StrCat(file.path(), ": actorder ", order.dump(),
                               " permutes the columns of "
                               "the weights"),
                  "quantise without it or with actorder 'static'");
  }
  const Json size = weights.value("group_size", Json());
  if (size != 32 && size != 64 && size != 128) {
    return Refuse(absl::StrCat(file.path(), ": group_size ", size.dump()), "use 32, 64 or 128");
  }
  *group = size.get<int>();
  return absl::OkStatus();
}

absl::Status ScanFile(const File& file, int index, Scan* scan) {
  STOKER_ASSIGN_OR_RETURN(std::vector<Tensor> tensors, ReadSafetensorsHeader(file));
  for (Tensor& tensor : tensors) {
    const auto name = ParseExpertTensorName(tensor.name);
    if (!name) {
      if (scan->other_names.size() < 8) scan->other_names.push_back(tensor.name);
      continue;
    }
    if (name->suffix == "weight_zero_point" || name->suffix == "weight_g_idx") {
      return Refuse(absl::StrCat(file.path(), ": tensor '", tensor.name, "'"),
                    "asymmetric and activation-ordered experts are not supported");
    }
    const bool scale = name->suffix == "weight_scale";
    if (!scale && name->suffix != "weight_packed") continue;
    if (scan->architecture.empty()) scan->architecture = name->architecture;
    if (scan->architecture != name->architecture) {
      return Refuse(absl::StrCat(file.path(), ": tensor '", tensor.name, "'"),
                    "two naming schemes in one checkpoint");
    }
    Found& found =
        scan->experts[{name->layer, name->expert}][name->projection + (scale ? kGateScale : 0)];
    if (!found.tensor.name.empty()) {
      return Refuse(absl::StrCat("tensor '", tensor.name, "' is in two files"), "keep one");
    }
    found = {std::move(tensor), index};
  }
  return absl::OkStatus();
}

absl::StatusOr<ScaleType> ScaleTypeOf(const Tensor& tensor) {
  if (tensor.type == "BF16") return ScaleType::kBf16;
  if (tensor.type == "F16") return ScaleType::kFp16;
  if (tensor.type == "F32") return ScaleType::kFp32;
  return Refuse(absl::StrCat("tensor '", tensor.name, "' has type ", tensor.type),
                "scales are BF16, F16 or F32");
}

absl::Status CheckTensor(const Tensor& tensor, uint64_t rows, uint64_t columns, bool scale) {
  if ((!scale && tensor.type != "I32") || tensor.shape != std::vector<uint64_t>{rows, columns}) {
    return Refuse(
        absl::StrCat("tensor '", tensor.name, "' is ", tensor.type, " [",
                     absl::StrJoin(tensor.shape, ", "), "]"),
        absl::StrCat("expected ", scale ? "a scale" : "I32", " [", rows, ", ", columns, "]"));
  }
  const uint64_t alignment = tensor.type == "I32" || tensor.type == "F32" ? 4 : 2;
  if (tensor.offset % alignment != 0) {
    return Refuse(absl::StrCat("tensor '", tensor.name, "' starts at offset ", tensor.offset),
                  "not a multiple of its element size");
  }
  return absl::OkStatus();
}

// The shape of one expert, every tensor of it checked.
absl::StatusOr<ExpertShape> ShapeOf(const Parts& parts, int group) {
  const Tensor& gate = parts[kGate].tensor;
  if (gate.shape.size() != 2 || gate.shape[0] == 0 || gate.shape[1] == 0 ||
      gate.shape[0] > (1u << 20) || gate.shape[1] > (1u << 20) || gate.bytes > kMaxExtent) {
    return Refuse(absl::StrCat("tensor '", gate.name, "'"), "is not a matrix of a supported size");
  }
  const uint64_t intermediate = gate.shape[0];
  const uint64_t hidden = gate.shape[1] * 8;
  if (hidden % group != 0 || intermediate % group != 0) {
    return Refuse(absl::StrCat("tensor '", gate.name, "': ", intermediate, " x ", hidden),
                  absl::StrCat("both must be multiples of the group size ", group));
  }
  ExpertShape shape;
  shape.hidden = static_cast<int>(hidden);
  shape.intermediate = static_cast<int>(intermediate);
  shape.group = group;
  STOKER_ASSIGN_OR_RETURN(shape.scale_type, ScaleTypeOf(parts[kGateScale].tensor));
  for (int part = 0; part < kParts; ++part) {
    const bool scale = part >= kGateScale;
    const bool down = part % kGateScale == kDown;
    const uint64_t rows = down ? hidden : intermediate;
    const uint64_t k = down ? intermediate : hidden;
    STOKER_RETURN_IF_ERROR(CheckTensor(parts[part].tensor, rows, k / (scale ? group : 8), scale));
    if (!scale) continue;
    STOKER_ASSIGN_OR_RETURN(const ScaleType type, ScaleTypeOf(parts[part].tensor));
    if (type != shape.scale_type) {
      return Refuse(absl::StrCat("tensor '", parts[part].tensor.name, "'"),
                    "the scales of an expert have different types");
    }
  }
  return shape;
}

absl::StatusOr<std::vector<std::string>> SafetensorsFiles(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") paths.push_back(entry->path().string());
    if (paths.size() > kMaxFiles) return Refuse(directory, "more than 65536 safetensors files");
  }
  if (error) return ErrnoStatus(error.value(), directory);
  if (paths.empty()) return absl::NotFoundError(absl::StrCat(directory, " has no *.safetensors"));
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

const char* PartName(int part) {
  constexpr const char* kNames[] = {"gate weights", "up weights", "down weights",
                                    "gate scales",  "up scales",  "down scales"};
  return kNames[part];
}

uint64_t ExpertExtents::bytes() const {
  uint64_t sum = 0;
  for (const Extent& extent : parts) sum += extent.bytes;
  return sum;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& directory,
                                                             const FileOpener& opener) {
  int group = 0;
  STOKER_ASSIGN_OR_RETURN(const auto config, opener(directory + "/config.json"));
  STOKER_RETURN_IF_ERROR(CheckScheme(*config, &group));
  STOKER_ASSIGN_OR_RETURN(const std::vector<std::string> paths, SafetensorsFiles(directory));
  auto checkpoint = std::unique_ptr<Checkpoint>(new Checkpoint());
  Scan scan;
  for (const std::string& path : paths) {
    STOKER_ASSIGN_OR_RETURN(auto file, opener(path));
    STOKER_ASSIGN_OR_RETURN(const FileIdentity identity, file->Identity());
    STOKER_RETURN_IF_ERROR(ScanFile(*file, static_cast<int>(checkpoint->files_.size()), &scan));
    checkpoint->files_.push_back({std::move(file), identity});
  }
  if (scan.experts.empty()) {
    return absl::NotFoundError(
        absl::StrCat(directory, " has no experts whose names are known (", SupportedExpertNames(),
                     "); names found: ", absl::StrJoin(scan.other_names, ", ")));
  }
  std::set<int> layers;
  for (const auto& [key, parts] : scan.experts) {
    layers.insert(key.first);
    checkpoint->experts_ = std::max(checkpoint->experts_, key.second + 1);
  }
  checkpoint->layers_.assign(layers.begin(), layers.end());
  checkpoint->architecture_ = scan.architecture;
  for (const int layer : layers) {
    for (int expert = 0; expert < checkpoint->experts_; ++expert) {
      const auto found = scan.experts.find({layer, expert});
      ExpertExtents extents;
      for (int part = 0; part < kParts; ++part) {
        if (found == scan.experts.end() || found->second[part].tensor.name.empty()) {
          return absl::NotFoundError(absl::StrCat(directory, ": layer ", layer, ", expert ", expert,
                                                  " has no ", PartName(part)));
        }
        const Found& tensor = found->second[part];
        extents.parts[part] = {tensor.file, tensor.tensor.offset, tensor.tensor.bytes};
      }
      STOKER_ASSIGN_OR_RETURN(const ExpertShape shape, ShapeOf(found->second, group));
      if (checkpoint->extents_.empty()) checkpoint->shape_ = shape;
      if (shape != checkpoint->shape_) {
        return Refuse(absl::StrCat("layer ", layer, ", expert ", expert),
                      "its shape or scale type is not that of the first expert");
      }
      checkpoint->extents_.push_back(extents);
    }
  }
  return checkpoint;
}

absl::Status Checkpoint::CheckFile(int index) const {
  return CheckUnchanged(*files_[index].file, files_[index].at_open);
}

}  // namespace stoker::offload
