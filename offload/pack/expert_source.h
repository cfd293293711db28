// The experts of any checkpoint that can be packed, one at a time, in the bytes that a record
// holds: compressed-tensors as they are (alternating rows of gate and up put apart), AWQ ("gemm")
// and GPTQ (v1 and v2) transposed, their zero points packed as compressed-tensors packs them.
//
//   STOKER_ASSIGN_OR_RETURN(auto source, OpenExpertSource(directory));
//   STOKER_RETURN_IF_ERROR(source->Read(layer_index, expert, &parts));
//
// Layouts. AWQ: qweight [K, N / 8] words, nibble i of word c is column 8 c + {0,2,4,6,1,3,5,7}[i],
// qzeros [K / group, N / 8] the same, scales [K / group, N]. GPTQ: qweight [K / 8, N] words, nibble
// i of word r is row 8 r + i; qzeros [K / group, N / 8], nibble i of word c is column 8 c + i, v1
// stores the zero point less one modulo 16. Values and scales keep their bits. Refused: g_idx that
// permutes, scales that are not finite, a symmetric AWQ or GPTQ with zeros other than 8.
// Not thread-safe. Errors name the file's tensor or layer and expert.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/io/file.h"
#include "offload/store/expert_shape.h"
#include "offload/store/record.h"
#include "offload/store/scheme.h"

namespace stoker::offload {

class ExpertSource {
 public:
  virtual ~ExpertSource() = default;
  const ExpertShape& shape() const { return shape_; }  // not interleaved
  const std::vector<int>& layers() const { return layers_; }
  int experts() const { return experts_; }
  const std::string& architecture() const { return architecture_; }
  Format format() const { return format_; }
  // Changes when a file of the source or its layout does.
  uint64_t fingerprint() const { return fingerprint_; }
  virtual absl::Status Read(int layer_index, int expert, ExpertBytes* parts) = 0;

 protected:
  ExpertShape shape_;
  std::vector<int> layers_;
  int experts_ = 0;
  std::string architecture_;
  Format format_ = Format::kPackQuantized;
  uint64_t fingerprint_ = 0;
};

absl::StatusOr<std::unique_ptr<ExpertSource>> OpenExpertSource(
    const std::string& directory, const FileOpener& opener = OpenPosixFile);

}  // namespace stoker::offload
