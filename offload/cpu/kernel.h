// Which kernel runs: a pure function of what the CPU can do.
//
//   if (auto status = CheckFloatingPointMode(); !status.ok()) return status;
//   const ExpertKernel& kernel = PickKernel(DetectCpuFeatures());
//   auto kernel = ChooseKernel(DetectCpuFeatures(), "avx2");  // to compare
//
// Thread-safe. Kernels live for ever. All give the same bits (expert.h).
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "offload/cpu/expert.h"

namespace stoker::offload::cpu {

struct CpuFeatures {
  bool avx2 = false, fma = false, f16c = false;
  bool avx512 = false;  // F, BW, DQ and VL
  bool avx512_vnni = false;
  bool amx_int8 = false;  // tiles too, and the kernel lets this process use them
};

struct ExpertKernel {
  const char* name;
  bool (*supported)(const CpuFeatures& features);
  TileFunction fc1, fc2;            // on rows of QuantizeRow
  TileFunction fc1_fp32, fc2_fp32;  // on rows of floats: PreparedRows::data points to them
};

// What this CPU and its operating system support. Asks for permission to use AMX, which makes the
// kernel save its 8 KiB of tiles for threads that use them.
CpuFeatures DetectCpuFeatures();

// The first row of kernels.inc that the features allow. Logs a line, once, if that is the scalar
// one.
const ExpertKernel& PickKernel(const CpuFeatures& features);

// The kernel of that name or, for nullptr or "", PickKernel's. Logs a line, once, for a name.
// InvalidArgument for an unknown name, FailedPrecondition where the features do not suffice.
absl::StatusOr<const ExpertKernel*> ChooseKernel(const CpuFeatures& features, const char* name);

// All rows of kernels.inc, in order.
const std::vector<ExpertKernel>& AllKernels();

// FailedPrecondition unless the calling thread rounds to nearest and keeps denormals: a library
// built with -ffast-math may have changed that for the process.
absl::Status CheckFloatingPointMode();

#define STOKER_CPU_TILE(name) \
  void name(const Expert& expert, const PreparedRows& in, int begin, int end, const OutputRows& out)
#define STOKER_CPU_KERNEL(suffix, name, needs) \
  STOKER_CPU_TILE(Fc1##suffix);                \
  STOKER_CPU_TILE(Fc2##suffix);                \
  STOKER_CPU_TILE(Fc1Fp32##suffix);            \
  STOKER_CPU_TILE(Fc2Fp32##suffix);
#include "offload/cpu/kernels.inc"
#undef STOKER_CPU_KERNEL
#undef STOKER_CPU_TILE

}  // namespace stoker::offload::cpu
