// The kernels of cpu/ as the engine calls them.
//
//   CpuExpertKernel kernel(cpu::PickKernel(cpu::DetectCpuFeatures()));
//
// Stateless and thread-safe; `kernel` lives for ever.
#pragma once

#include "offload/cpu/kernel.h"
#include "offload/dispatch/expert_kernel.h"

namespace stoker::offload {

class CpuExpertKernel : public ExpertKernel {
 public:
  explicit CpuExpertKernel(const cpu::ExpertKernel& kernel) : kernel_(kernel) {}

  size_t PreparedBytes(int columns, int group) const override;
  void Prepare(const float* row, int columns, int group, char* prepared) const override;
  void Fc1(const ExpertView& expert, const char* prepared, int begin, int end,
           float* out) const override;
  void Fc2(const ExpertView& expert, const char* prepared, int begin, int end,
           float* out) const override;

 private:
  const cpu::ExpertKernel& kernel_;
};

}  // namespace stoker::offload
