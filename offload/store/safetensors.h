// The header of a safetensors file: names, types, shapes and byte ranges of its tensors.
//
//   STOKER_ASSIGN_OR_RETURN(std::vector<Tensor> tensors, ReadSafetensorsHeader(*file));
//
// The file is untrusted. What is returned lies inside the file: every range was checked against
// its size, against the type and shape, and for names that occur twice. Limits: a header of 100 MiB
// (the format's own), 8 dimensions. Errors are InvalidArgument and name the file and the tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "offload/io/file.h"

namespace stoker::offload {

struct Tensor {
  std::string name;
  std::string type;  // as the format spells it: "I32", "BF16", ...
  std::vector<uint64_t> shape;
  uint64_t offset = 0;  // from the start of the file
  uint64_t bytes = 0;
};

absl::StatusOr<std::vector<Tensor>> ReadSafetensorsHeader(const File& file);

// The part of ReadSafetensorsHeader that looks at no file: `json` is the header, `data_begin` where
// the data start, `file_size` the size of the file.
absl::StatusOr<std::vector<Tensor>> ParseSafetensorsHeader(absl::string_view json,
                                                           uint64_t data_begin, uint64_t file_size);

}  // namespace stoker::offload
