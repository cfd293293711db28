#include "offload/cpu/kernel.h"

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace stoker::offload::cpu {

namespace {

// Linux hands out the tiles' registers to processes that ask
// (kernel documentation, arch/x86/xstate: ARCH_REQ_XCOMP_PERM).
bool MayUseAmxInt8() {
  constexpr unsigned kTileAndInt8 = 1u << 24 | 1u << 25;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a, b, c, d;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  return (d & kTileAndInt8) == kTileAndInt8 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

CpuFeatures DetectCpuFeatures() {
  // libgcc's table counts a feature only if the operating system saves its registers too.
  __builtin_cpu_init();
  CpuFeatures f;
  f.avx2 = __builtin_cpu_supports("avx2");
  f.fma = __builtin_cpu_supports("fma");
  f.f16c = __builtin_cpu_supports("f16c");
  f.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && f.f16c;
  f.avx512_vnni = __builtin_cpu_supports("avx512vnni");
  f.amx_int8 = MayUseAmxInt8();
  return f;
}

const std::vector<ExpertKernel>& AllKernels() {
  static const auto* kernels = new std::vector<ExpertKernel>{
#define STOKER_CPU_KERNEL(suffix, name, needs)                  \
  {name,                                                        \
   []([[maybe_unused]] const CpuFeatures& f) { return needs; }, \
   Fc1##suffix,                                                 \
   Fc2##suffix,                                                 \
   Fc1Fp32##suffix,                                             \
   Fc2Fp32##suffix},
#include "offload/cpu/kernels.inc"
#undef STOKER_CPU_KERNEL
  };
  return *kernels;
}

const ExpertKernel& PickKernel(const CpuFeatures& features) {
  const std::vector<ExpertKernel>& kernels = AllKernels();
  for (const ExpertKernel& kernel : kernels) {
    if (&kernel != &kernels.back() && kernel.supported(features)) return kernel;
  }
  static std::atomic<bool> logged{false};
  if (!logged.exchange(true, std::memory_order_relaxed)) {
    std::fprintf(stderr,
                 "stoker: this CPU has neither AVX2 with FMA and F16C nor AVX-512 with VNNI; "
                 "experts run in scalar code, which is slow\n");
  }
  return kernels.back();
}

absl::StatusOr<const ExpertKernel*> ChooseKernel(const CpuFeatures& features, const char* name) {
  if (name == nullptr || *name == '\0') return &PickKernel(features);
  std::string names;
  for (const ExpertKernel& kernel : AllKernels()) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", kernel.name);
    if (std::strcmp(kernel.name, name) != 0) continue;
    if (!kernel.supported(features)) {
      return absl::FailedPreconditionError(
          absl::StrFormat("this CPU cannot run the expert kernel %s", name));
    }
    static std::atomic<bool> logged{false};
    if (!logged.exchange(true, std::memory_order_relaxed)) {
      std::fprintf(stderr, "stoker: experts run in the kernel %s, as asked for\n", name);
    }
    return &kernel;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("no expert kernel is called \"%s\"; there are %s", name, names));
}

absl::Status CheckFloatingPointMode() {
  constexpr unsigned kFlushOrDenormalsOrRounding = 0x8000 | 0x0040 | 0x6000;
  const unsigned mode = _mm_getcsr();
  if ((mode & kFlushOrDenormalsOrRounding) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "MXCSR is 0x%04x: this thread flushes denormals to zero or does not round to nearest, so "
      "results would differ; a library built with -ffast-math does this when it is loaded",
      mode));
}

}  // namespace stoker::offload::cpu
