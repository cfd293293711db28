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
  explicit CpuExpertKernel(const cpu::ExpertKernel& kernel);

  size_t PreparedBytes(int columns, int group) const override;
  void Prepare(const float* row, int columns, int group, char* prepared) const override;
  void Fc1(const ExpertView& expert, const PreparedTokens& in, int begin, int end, float* out,
           size_t out_stride) const override;
  void Fc2(const ExpertView& expert, const PreparedTokens& in, int begin, int end, float* out,
           size_t out_stride) const override;
  void Accumulate(float weight, const float* row, size_t count, float* sum) const override;

 private:
  const cpu::ExpertKernel& kernel_;
  const bool fma_;
};

}  // namespace stoker::offload
