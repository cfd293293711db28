// Which kernel runs: a pure function of what the CPU can do.
//
//   if (auto status = CheckFloatingPointMode(); !status.ok()) return status;
//   const ExpertKernel& kernel = PickKernel(DetectCpuFeatures());
//
// Thread-safe. Kernels live for ever. All give the same bits (expert.h).
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "offload/cpu/expert.h"

namespace stoker::offload::cpu {

struct CpuFeatures {
  bool avx2 = false, fma = false, f16c = false;
  bool avx512 = false;  // F, BW, DQ and VL
  bool avx512_vnni = false;
};

struct ExpertKernel {
  const char* name;
  bool (*supported)(const CpuFeatures& features);
  TileFunction fc1, fc2;
};

// What this CPU and its operating system support.
CpuFeatures DetectCpuFeatures();

// The first row of kernels.inc that the features allow. Logs a line, once, if that is the scalar
// one.
const ExpertKernel& PickKernel(const CpuFeatures& features);

// All rows of kernels.inc, in order.
const std::vector<ExpertKernel>& AllKernels();

// FailedPrecondition unless the calling thread rounds to nearest and keeps denormals: a library
// built with -ffast-math may have changed that for the process.
absl::Status CheckFloatingPointMode();

#define STOKER_CPU_KERNEL(suffix, name, needs)                                                     \
  void Fc1##suffix(const Expert&, const PreparedRows&, int begin, int end, const OutputRows& out); \
  void Fc2##suffix(const Expert&, const PreparedRows&, int begin, int end, const OutputRows& out);
#include "offload/cpu/kernels.inc"
#undef STOKER_CPU_KERNEL

}  // namespace stoker::offload::cpu
