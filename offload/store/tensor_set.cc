#include "offload/store/tensor_set.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace stoker::offload {
namespace {

using Json = nlohmann::json;

constexpr char kIndexName[] = "/model.safetensors.index.json";
constexpr uint64_t kMaxIndexBytes = 256ull << 20;
constexpr size_t kMaxFiles = 1 << 16;
constexpr uint64_t kMaxExperts = 1 << 16;
constexpr size_t kNamesInMessage = 8;
// No index nests deeper than weight_map and metadata.
constexpr int kMaxDepth = 8;

absl::Status Refuse(absl::string_view what, absl::string_view remedy) {
  return absl::InvalidArgumentError(absl::StrCat(what, "; ", remedy));
}

absl::StatusOr<std::vector<std::string>> SafetensorsFiles(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") names.push_back(entry->path().filename());
    if (names.size() > kMaxFiles) return Refuse(directory, "more than 65536 safetensors files");
  }
  if (error) return ErrnoStatus(error.value(), directory);
  if (names.empty()) return absl::NotFoundError(absl::StrCat(directory, " has no *.safetensors"));
  std::sort(names.begin(), names.end());
  return names;
}

using Index = std::map<std::string, std::string>;

// Empty where the directory has no index.
absl::StatusOr<Index> ReadIndex(const std::string& directory, const FileOpener& opener) {
  auto file = opener(directory + kIndexName);
  if (absl::IsNotFound(file.status())) return Index();
  STOKER_RETURN_IF_ERROR(file.status());
  STOKER_ASSIGN_OR_RETURN(const FileIdentity identity, (*file)->Identity());
  if (identity.size > kMaxIndexBytes) {
    return Refuse(absl::StrCat((*file)->path(), " has ", identity.size, " bytes"),
                  "at most 256 MiB are read");
  }
  std::string text(identity.size, '\0');
  STOKER_RETURN_IF_ERROR(ReadFully(**file, 0, absl::MakeSpan(text)));
  auto index = ParseShardIndex(text);
  if (!index.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat((*file)->path(), ": ", index.status().message()));
  }
  return index;
}

class Scanner {
 public:
  Scanner(const std::string& directory, Index index)
      : directory_(directory), index_(std::move(index)) {}

  absl::Status Open(const std::string& name, const FileOpener& opener) {
    auto file = opener(absl::StrCat(directory_, "/", name));
    if (absl::IsNotFound(file.status()) && !index_.empty()) {
      return absl::NotFoundError(absl::StrCat(directory_, kIndexName, " names the file '", name,
                                              "', which is not there; fetch it"));
    }
    STOKER_RETURN_IF_ERROR(file.status());
    STOKER_ASSIGN_OR_RETURN(const FileIdentity identity, (*file)->Identity());
    STOKER_ASSIGN_OR_RETURN(std::vector<Tensor> tensors, ReadSafetensorsHeader(**file));
    for (Tensor& tensor : tensors) STOKER_RETURN_IF_ERROR(Add(name, std::move(tensor)));
    set_.files.push_back({*std::move(file), identity});
    return absl::OkStatus();
  }

  absl::StatusOr<TensorSet> Finish() {
    for (const auto& [tensor, file] : index_) {
      if (!seen_.contains(tensor) && ParseExpertTensorName(tensor)) {
        return absl::NotFoundError(absl::StrCat(directory_, kIndexName, " says that '", file,
                                                "' holds the tensor '", tensor,
                                                "', which it does not; fetch both again"));
      }
    }
    if (set_.layers.empty()) {
      return absl::NotFoundError(absl::StrCat(
          directory_, " has no experts whose names are known (", SupportedExpertNames(),
          "); names found: ", absl::StrJoin(other_names_, ", ")));
    }
    return std::move(set_);
  }

 private:
  absl::Status Add(const std::string& file, Tensor tensor) {
    const auto name = ParseExpertTensorName(tensor.name);
    if (!name) {
      if (other_names_.size() < kNamesInMessage) other_names_.push_back(tensor.name);
      return absl::OkStatus();
    }
    const auto where = index_.find(tensor.name);
    if (!index_.empty() && (where == index_.end() || where->second != file)) {
      return Refuse(absl::StrCat(directory_, kIndexName, " does not say that '", file,
                                 "' holds the tensor '", tensor.name, "'"),
                    "fetch both again");
    }
    if (set_.architecture.empty()) set_.architecture = name->architecture;
    if (set_.architecture != name->architecture) {
      return Refuse(absl::StrCat(file, ": tensor '", tensor.name, "' is named as in ",
                                 name->architecture, ", others as in ", set_.architecture),
                    "a checkpoint has one naming");
    }
    if (!index_.empty()) seen_.insert(tensor.name);
    TensorsBySuffix& suffixes = set_.layers[name->layer][name->expert][name->projection];
    const std::string full = tensor.name;
    const int number = static_cast<int>(set_.files.size());
    if (!suffixes.emplace(name->suffix, FoundTensor{std::move(tensor), number}).second) {
      return Refuse(absl::StrCat("tensor '", full, "' is in two files"), "keep one");
    }
    return absl::OkStatus();
  }

  const std::string directory_;
  const Index index_;
  TensorSet set_;
  std::set<std::string> seen_;
  std::vector<std::string> other_names_;  // a few, for the message
};

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParseShardIndex(absl::string_view text) {
  bool too_deep = false;
  const auto watch = [&](int depth, Json::parse_event_t, Json&) {
    too_deep |= depth > kMaxDepth;
    return !too_deep;
  };
  const Json json = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (too_deep || json.is_discarded() || !json.is_object() || !json.contains("weight_map") ||
      !json["weight_map"].is_object() || json["weight_map"].empty()) {
    return Refuse("is not a JSON object with the member weight_map", "fetch it again");
  }
  Index index;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string()) return Refuse("a file of weight_map is not a string", "fetch it again");
    const std::string name = file.get<std::string>();
    if (!absl::EndsWith(name, ".safetensors") || absl::StrContains(name, '/') ||
        name.find('\0') != std::string::npos || name.size() > 255) {
      return Refuse(absl::StrCat("the file '", name.substr(0, 80), "' of weight_map"),
                    "is not the name of a *.safetensors file of the same directory");
    }
    index[tensor] = name;
  }
  return index;
}

absl::StatusOr<TensorSet> OpenTensorSet(const std::string& directory, const FileOpener& opener) {
  STOKER_ASSIGN_OR_RETURN(Index index, ReadIndex(directory, opener));
  std::vector<std::string> names;
  if (index.empty()) {
    STOKER_ASSIGN_OR_RETURN(names, SafetensorsFiles(directory));
  } else {
    std::set<std::string> distinct;
    for (const auto& [tensor, file] : index) distinct.insert(file);
    names.assign(distinct.begin(), distinct.end());
    if (names.size() > kMaxFiles) return Refuse(directory, "more than 65536 safetensors files");
  }
  Scanner scanner(directory, std::move(index));
  for (const std::string& name : names) STOKER_RETURN_IF_ERROR(scanner.Open(name, opener));
  return scanner.Finish();
}

const FoundTensor* TensorSet::Lookup(int layer, int expert, int projection,
                                     absl::string_view suffix) const {
  const auto found_layer = layers.find(layer);
  if (found_layer == layers.end()) return nullptr;
  const auto found_expert = found_layer->second.find(expert);
  if (found_expert == found_layer->second.end()) return nullptr;
  const TensorsBySuffix& suffixes = found_expert->second[projection];
  const auto found = suffixes.find(suffix);
  return found == suffixes.end() ? nullptr : &found->second;
}

bool TensorSet::Has(int layer, int expert, int projection, absl::string_view suffix) const {
  return Lookup(layer, expert, projection, suffix) != nullptr ||
         Lookup(layer, ExpertTensorName::kStacked, projection, suffix) != nullptr;
}

absl::StatusOr<TensorSet::Matrix> TensorSet::Find(int layer, int expert, int projection,
                                                  absl::string_view suffix) const {
  const FoundTensor* found = Lookup(layer, expert, projection, suffix);
  const bool stacked = found == nullptr;
  if (stacked) found = Lookup(layer, ExpertTensorName::kStacked, projection, suffix);
  if (found == nullptr) {
    constexpr const char* kNames[] = {"gate", "up", "down", "fused gate and up"};
    return absl::NotFoundError(absl::StrCat("layer ", layer, ", expert ", expert, " has no ",
                                            kNames[projection], " ", suffix));
  }
  const Tensor& tensor = found->tensor;
  const std::vector<uint64_t>& shape = tensor.shape;
  if (shape.size() != (stacked ? 3 : 2) || (stacked && shape[0] <= static_cast<uint64_t>(expert))) {
    return Refuse(absl::StrCat("tensor '", tensor.name, "' is [", absl::StrJoin(shape, ", "), "]"),
                  stacked ? absl::StrCat("expected a matrix an expert, more than ", expert)
                          : std::string("expected a matrix"));
  }
  Matrix matrix{tensor.name,  tensor.type,   found->file, shape[shape.size() - 2],
                shape.back(), tensor.offset, tensor.bytes};
  if (stacked) {
    matrix.bytes /= shape[0];
    matrix.offset += matrix.bytes * expert;
  }
  return matrix;
}

int TensorSet::Experts(int layer) const {
  uint64_t experts = 0;
  for (const auto& [expert, projections] : layers.at(layer)) {
    if (expert != ExpertTensorName::kStacked) {
      experts = std::max<uint64_t>(experts, expert + 1);
      continue;
    }
    for (const TensorsBySuffix& suffixes : projections) {
      for (const auto& [suffix, found] : suffixes) {
        if (found.tensor.shape.size() == 3) experts = std::max(experts, found.tensor.shape[0]);
      }
    }
  }
  return static_cast<int>(std::min(experts, kMaxExperts));
}

}  // namespace stoker::offload
