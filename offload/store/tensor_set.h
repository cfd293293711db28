// All tensors of a checkpoint's experts, by layer and expert, whichever file they are in.
//
//   STOKER_ASSIGN_OR_RETURN(TensorSet tensors, OpenTensorSet(directory, OpenPosixFile));
//
// Reads model.safetensors.index.json where there is one (then only its files, and every tensor of
// an expert must be where it says), else every *.safetensors of the directory. All files are
// untrusted; every range was checked against its file. Limits: 2^16 files, layers and experts each,
// an index of 256 MiB. Errors name the file or tensor; an unknown naming lists names that it found.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "offload/io/file.h"
#include "offload/store/expert_names.h"
#include "offload/store/safetensors.h"

namespace stoker::offload {

struct OpenFile {
  std::unique_ptr<File> file;
  FileIdentity at_open;
};

struct FoundTensor {
  Tensor tensor;
  int file = 0;
};

// By suffix ("weight_packed") of one projection.
using TensorsBySuffix = std::map<std::string, FoundTensor, std::less<>>;
using ExpertTensors = std::array<TensorsBySuffix, kProjections>;

struct TensorSet {
  // A matrix of one expert: a tensor of its own, or a slice of a stacked one.
  struct Matrix {
    std::string name;  // of the tensor
    std::string type;
    int file = 0;
    uint64_t rows = 0;
    uint64_t columns = 0;
    uint64_t offset = 0;  // in the file
    uint64_t bytes = 0;
  };

  std::vector<OpenFile> files;
  std::string architecture;
  // Expert ExpertTensorName::kStacked holds what is stacked.
  std::map<int, std::map<int, ExpertTensors>> layers;

  // NotFound where there is no such tensor, InvalidArgument where it has no two dimensions (or
  // three when stacked) or its stack ends before `expert`.
  absl::StatusOr<Matrix> Find(int layer, int expert, int projection,
                              absl::string_view suffix) const;
  bool Has(int layer, int expert, int projection, absl::string_view suffix) const;
  // The experts of a layer: one more than the highest number, or the first dimension of a stack.
  int Experts(int layer) const;

 private:
  const FoundTensor* Lookup(int layer, int expert, int projection, absl::string_view suffix) const;
};

absl::StatusOr<TensorSet> OpenTensorSet(const std::string& directory, const FileOpener& opener);

// The file of each tensor, from the text of an index; the names of files hold no directory.
absl::StatusOr<std::map<std::string, std::string>> ParseShardIndex(absl::string_view json);

}  // namespace stoker::offload
