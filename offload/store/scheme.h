// What config.json says of the weights: format, group size, zero points, order of gate and up.
//
//   STOKER_ASSIGN_OR_RETURN(const Scheme scheme, ReadScheme(*config_file));
//
// The file is untrusted: at most 16 MiB, any content. Refused with the reason and the remedy: other
// widths and formats, mixed schemes, group sizes, and orders of activations that permute columns.
#pragma once

#include <limits>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "offload/io/file.h"

namespace stoker::offload {

// compressed-tensors "pack-quantized" is used in place; AWQ ("gemm") and GPTQ are transposed and
// must be packed first.
enum class Format { kPackQuantized, kAwq, kGptq };
const char* FormatName(Format format);

// gate' = min(gate, limit), up' = clamp(up, +-limit), gate' * sigmoid(alpha * gate') * (up' + beta)
struct SwigluParameters {
  float alpha = 1.0f;
  float beta = 0.0f;
  float limit = std::numeric_limits<float>::infinity();
  bool operator==(const SwigluParameters&) const = default;
};

struct Scheme {
  Format format = Format::kPackQuantized;
  int group = 0;             // weights that share a scale: 32, 64 or 128
  bool zero_points = false;  // stored per group; else every zero is 8
  bool gptq_v2 = false;      // GPTQ: zero points as they are; else one less
  // Rows of a fused gate and up alternate (GPT-OSS) instead of being two halves.
  bool interleaved = false;
  SwigluParameters swiglu;
};

absl::StatusOr<Scheme> ReadScheme(const File& config);

// The part of ReadScheme that looks at no file.
absl::StatusOr<Scheme> ParseScheme(absl::string_view json);

}  // namespace stoker::offload
