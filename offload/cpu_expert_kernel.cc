#include "offload/cpu_expert_kernel.h"

namespace stoker::offload {
namespace {

size_t ScaleBytes(ScaleType type) { return type == ScaleType::kFp32 ? 4 : 2; }

cpu::ScaleType CpuScaleType(ScaleType type) {
  switch (type) {
    case ScaleType::kBf16:
      return cpu::ScaleType::kBf16;
    case ScaleType::kFp16:
      return cpu::ScaleType::kFp16;
    case ScaleType::kFp32:
      break;
  }
  return cpu::ScaleType::kFp32;
}

cpu::PackedMatrix Matrix(const ExpertView& view, int part, int columns) {
  return {reinterpret_cast<const uint8_t*>(view.parts[part]), view.parts[part + kGateScale],
          static_cast<size_t>(columns) / 2,
          columns / view.shape.group * ScaleBytes(view.shape.scale_type)};
}

cpu::Expert ToCpu(const ExpertView& view) {
  const ExpertShape& s = view.shape;
  cpu::Expert expert;
  expert.hidden = s.hidden;
  expert.intermediate = s.intermediate;
  expert.group = s.group;
  expert.scale_type = CpuScaleType(s.scale_type);
  expert.gate = Matrix(view, kGate, s.hidden);
  expert.up = Matrix(view, kUp, s.hidden);
  expert.down = Matrix(view, kDown, s.intermediate);
  return expert;
}

}  // namespace

size_t CpuExpertKernel::PreparedBytes(int columns, int group) const {
  return cpu::PreparedBytes(columns, group);
}

void CpuExpertKernel::Prepare(const float* row, int columns, int group, char* prepared) const {
  cpu::QuantizeRow(row, columns, group, prepared);
}

void CpuExpertKernel::Fc1(const ExpertView& expert, const char* prepared, int begin, int end,
                          float* out) const {
  const size_t stride = PreparedBytes(expert.shape.hidden, expert.shape.group);
  kernel_.fc1(ToCpu(expert), {prepared, stride, 1}, begin, end,
              {out, static_cast<size_t>(expert.shape.intermediate)});
}

void CpuExpertKernel::Fc2(const ExpertView& expert, const char* prepared, int begin, int end,
                          float* out) const {
  const size_t stride = PreparedBytes(expert.shape.intermediate, expert.shape.group);
  kernel_.fc2(ToCpu(expert), {prepared, stride, 1}, begin, end,
              {out, static_cast<size_t>(expert.shape.hidden)});
}

}  // namespace stoker::offload
