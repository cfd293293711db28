#include "tools/stoker/doctor.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "testing/faults/cpu_runner.h"
#include "testing/faults/plans.h"
#include "testing/gpu/fault_streams.h"

namespace stoker::command {
namespace {

using stoker::testing::FaultPlan;
using stoker::testing::FaultWorld;

// Of NVIDIA's management library, which comes with the driver
// (https://docs.nvidia.com/deploy/nvml-api/). Loaded by name: machines without a GPU lack it.
class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW)) {}

  // OK: CUDA's device 0 has no process that computes.
  absl::Status DeviceIsFree() const {
    char bus[32] = {};
    if (cudaDeviceGetPCIBusId(bus, sizeof(bus), 0) != cudaSuccess) {
      return absl::UnavailableError("CUDA device 0 does not answer");
    }
    const auto init = Function<int()>("nvmlInit_v2");
    const auto find = Function<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
    const auto processes =
        Function<int(void*, unsigned*, void*)>("nvmlDeviceGetComputeRunningProcesses_v3");
    void* device = nullptr;
    if (init == nullptr || find == nullptr || processes == nullptr || init() != kSuccess ||
        find(bus, &device) != kSuccess) {
      return absl::FailedPreconditionError(
          "cannot ask the driver's management library (libnvidia-ml.so.1) whether other processes "
          "use the GPU");
    }
    unsigned count = 0;  // room for none: the answer is how many there are
    const int result = processes(device, &count, nullptr);
    if (result == kSuccess && count == 0) return absl::OkStatus();
    if (result != kSuccess && result != kInsufficientSize) {
      return absl::FailedPreconditionError(
          absl::StrCat("the driver does not tell which processes use the GPU (NVML ", result, ")"));
    }
    return absl::FailedPreconditionError(absl::StrCat(
        count, " other process", count == 1 ? " uses" : "es use", " the GPU ", bus,
        ": faults would disturb it. End it, or choose another GPU by CUDA_VISIBLE_DEVICES"));
  }

 private:
  static constexpr int kSuccess = 0, kInsufficientSize = 7;
  template <class Signature>
  Signature* Function(const char* name) const {
    return library_ == nullptr ? nullptr : reinterpret_cast<Signature*>(dlsym(library_, name));
  }
  void* library_;  // stays loaded
};

// Before CUDA is touched: a process that has done so must not fork ranks.
bool HasGpu() {
  if (access("/dev/nvidiactl", R_OK) != 0) return false;
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

}  // namespace

int RunDoctorFaults() {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);  // testing/gpu/fault_streams.h
  const bool gpu = HasGpu();
  if (gpu) {
    const absl::Status free = Nvml().DeviceIsFree();
    if (!free.ok()) {
      absl::FPrintF(stderr, "stoker doctor --faults: %s.\n", free.message());
      return 2;
    }
  }
  const FaultWorld world = gpu ? FaultWorld::kGpuStreams : FaultWorld::kCpuRanks;
  absl::PrintF("Fault plans on this machine, %d ranks as %s:\n", stoker::testing::kFaultRanks,
               stoker::testing::FaultWorldName(world));
  int passed = 0, failed = 0, left_out = 0;
  for (const FaultPlan& plan : stoker::testing::FaultPlans()) {
    const char* cannot = plan.cannot[static_cast<int>(world)];
    if (cannot == nullptr && gpu && plan.needs_test_kernels()) {
      cannot = "needs a kernel of the test build (//testing/gpu:gpu_tests)";
    }
    absl::PrintF("%-28s one rank %s\n", plan.name, plan.what);
    std::fflush(stdout);
    if (cannot != nullptr) {
      ++left_out;
      absl::PrintF("%28s left out: %s\n", "", cannot);
      continue;
    }
    const absl::Time start = absl::Now();
    const absl::Status status = gpu ? stoker::testing::RunOnGpuStreams(plan, 1, nullptr)
                                    : stoker::testing::RunOnCpuRanks(plan, 1);
    ++(status.ok() ? passed : failed);
    absl::PrintF("%28s %s after %.2f s: %s\n", "", status.ok() ? "passed" : "FAILED",
                 absl::ToDoubleSeconds(absl::Now() - start),
                 status.ok() ? plan.Expectation() : status.ToString());
  }
  absl::PrintF("%d passed, %d failed, %d left out\n", passed, failed, left_out);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace stoker::command
