#include "offload/store/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace stoker::offload {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100ull << 20;
constexpr size_t kMaxDimensions = 8;
constexpr int kMaxDepth = 4;

uint64_t BytesOfType(absl::string_view type) {
  if (type == "I64" || type == "U64" || type == "F64") return 8;
  if (type == "I32" || type == "U32" || type == "F32") return 4;
  if (type == "I16" || type == "U16" || type == "F16" || type == "BF16") return 2;
  if (type == "I8" || type == "U8" || type == "BOOL" || type == "F8_E4M3" || type == "F8_E5M2") {
    return 1;
  }
  return 0;
}

absl::Status Bad(absl::string_view name, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("tensor '", name, "': ", what));
}

// An unsigned integer of JSON, or nothing for any other value.
bool AsSize(const Json& json, uint64_t* value) {
  if (!json.is_number_unsigned()) return false;
  *value = json.get<uint64_t>();
  return true;
}

absl::StatusOr<Tensor> ParseTensor(const std::string& name, const Json& json, uint64_t data_begin,
                                   uint64_t file_size) {
  if (!json.is_object() || !json.contains("dtype") || !json["dtype"].is_string() ||
      !json.contains("shape") || !json["shape"].is_array() || !json.contains("data_offsets") ||
      !json["data_offsets"].is_array() || json["data_offsets"].size() != 2) {
    return Bad(name, "needs dtype, shape and data_offsets");
  }
  Tensor tensor{name, json["dtype"].get<std::string>(), {}, 0, 0};
  const uint64_t element = BytesOfType(tensor.type);
  if (element == 0) return Bad(name, absl::StrCat("unknown dtype '", tensor.type, "'"));
  if (json["shape"].size() > kMaxDimensions) return Bad(name, "more than 8 dimensions");
  uint64_t bytes = element;
  for (const Json& dimension : json["shape"]) {
    uint64_t size = 0;
    if (!AsSize(dimension, &size)) return Bad(name, "a dimension is not a size");
    if (__builtin_mul_overflow(bytes, size, &bytes)) return Bad(name, "its size overflows");
    tensor.shape.push_back(size);
  }
  uint64_t begin = 0;
  uint64_t end = 0;
  if (!AsSize(json["data_offsets"][0], &begin) || !AsSize(json["data_offsets"][1], &end)) {
    return Bad(name, "an offset is not a size");
  }
  // data_begin <= file_size holds, so neither subtraction can wrap.
  if (begin > end || end > file_size - data_begin) {
    return Bad(name, absl::StrCat("bytes [", begin, ", ", end, ") are not inside the file, whose ",
                                  "data have ", file_size - data_begin, " bytes"));
  }
  if (end - begin != bytes) {
    return Bad(name, absl::StrCat("has ", end - begin, " bytes, its shape and dtype need ", bytes));
  }
  tensor.offset = data_begin + begin;
  tensor.bytes = bytes;
  return tensor;
}

// The format forbids it (https://github.com/huggingface/safetensors, "Format"); weights that are
// scales as well would be read without complaint.
absl::Status CheckNoOverlap(const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> by_offset;
  for (const Tensor& tensor : tensors) {
    if (tensor.bytes > 0) by_offset.push_back(&tensor);
  }
  std::sort(by_offset.begin(), by_offset.end(),
            [](const Tensor* a, const Tensor* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const Tensor& before = *by_offset[i - 1];
    if (by_offset[i]->offset - before.offset < before.bytes) {
      return Bad(by_offset[i]->name, absl::StrCat("its bytes are also those of '", before.name,
                                                  "'; the file is damaged"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Tensor>> ParseSafetensorsHeader(absl::string_view text,
                                                           uint64_t data_begin,
                                                           uint64_t file_size) {
  if (data_begin > file_size) return absl::InvalidArgumentError("the header exceeds the file");
  std::set<std::string> names;
  std::string duplicate;
  bool too_deep = false;
  // The parser keeps the last of two equal keys; a file that has both means something else.
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDepth) too_deep = true;
    if (depth == 1 && event == Json::parse_event_t::key &&
        !names.insert(value.get<std::string>()).second) {
      duplicate = value.get<std::string>();
    }
    return !too_deep;
  };
  const Json json = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (too_deep) return absl::InvalidArgumentError("the header is nested too deeply");
  if (json.is_discarded() || !json.is_object()) {
    return absl::InvalidArgumentError("the header is not a JSON object");
  }
  if (!duplicate.empty()) return Bad(duplicate, "occurs twice");
  std::vector<Tensor> tensors;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") continue;
    STOKER_ASSIGN_OR_RETURN(Tensor tensor, ParseTensor(name, value, data_begin, file_size));
    tensors.push_back(std::move(tensor));
  }
  STOKER_RETURN_IF_ERROR(CheckNoOverlap(tensors));
  return tensors;
}

absl::StatusOr<std::vector<Tensor>> ReadSafetensorsHeader(const File& file) {
  STOKER_ASSIGN_OR_RETURN(const FileIdentity identity, file.Identity());
  unsigned char length[8];
  STOKER_RETURN_IF_ERROR(
      ReadFully(file, 0, absl::MakeSpan(reinterpret_cast<char*>(length), sizeof(length))));
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | length[i];
  if (header_bytes > kMaxHeaderBytes || header_bytes > identity.size - sizeof(length)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": the header claims ", header_bytes, " bytes; the file has ",
                     identity.size, " and the limit is ", kMaxHeaderBytes));
  }
  std::string json(header_bytes, '\0');
  STOKER_RETURN_IF_ERROR(ReadFully(file, sizeof(length), absl::MakeSpan(json)));
  auto tensors = ParseSafetensorsHeader(json, sizeof(length) + header_bytes, identity.size);
  if (!tensors.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", tensors.status().message()));
  }
  return tensors;
}

}  // namespace stoker::offload
