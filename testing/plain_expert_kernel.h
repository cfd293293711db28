// The W4A8 arithmetic of an expert in plain loops: what a fast kernel is compared with. Its exp is
// the C library's. Stateless.
#pragma once

#include "offload/dispatch/expert_kernel.h"

namespace stoker::testing {

class PlainExpertKernel : public offload::ExpertKernel {
 public:
  size_t PreparedBytes(int columns, int group) const override;
  void Prepare(const float* row, int columns, int group, char* prepared) const override;
  void Fc1(const offload::ExpertView& expert, const offload::PreparedTokens& in, int begin, int end,
           float* out, size_t out_stride) const override;
  void Fc2(const offload::ExpertView& expert, const offload::PreparedTokens& in, int begin, int end,
           float* out, size_t out_stride) const override;
};

}  // namespace stoker::testing
