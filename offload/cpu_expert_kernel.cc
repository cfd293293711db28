#include "offload/cpu_expert_kernel.h"

#include <immintrin.h>

#include <cmath>

namespace stoker::offload {
namespace {

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
  // The parts of gate hold the rows of up, too, where they alternate.
  const bool alternates = view.shape.interleaved && part != kDown;
  const int stored = alternates ? kGate : part;
  const size_t step = alternates ? 2 : 1;
  const size_t first = alternates && part == kUp ? 1 : 0;
  const size_t blocks = columns / view.shape.group;
  const size_t weight_row = static_cast<size_t>(columns) / 2;
  const size_t scale_row = blocks * ScaleBytes(view.shape.scale_type);
  cpu::PackedMatrix matrix;
  matrix.weights = reinterpret_cast<const uint8_t*>(view.parts[stored]) + first * weight_row;
  matrix.scales = view.parts[stored + kGateScale] + first * scale_row;
  matrix.weight_stride = step * weight_row;
  matrix.scale_stride = step * scale_row;
  if (view.shape.zero_points) {
    matrix.zeros = view.parts[stored + kGateZero];
    matrix.zero_stride = blocks * sizeof(uint32_t);
    matrix.zero_row = static_cast<int>(first);
    matrix.zero_row_step = static_cast<int>(step);
  }
  return matrix;
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
  expert.swiglu = {s.swiglu.alpha, s.swiglu.beta, s.swiglu.limit};
  return expert;
}

// The same bits as the C library's fma, eight at a time.
[[gnu::target("avx2,fma")]] void AccumulateFma(float weight, const float* row, size_t count,
                                               float* sum) {
  const __m256 w = _mm256_set1_ps(weight);
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(sum + i,
                     _mm256_fmadd_ps(w, _mm256_loadu_ps(row + i), _mm256_loadu_ps(sum + i)));
  }
  for (; i < count; ++i) sum[i] = std::fma(weight, row[i], sum[i]);
}

bool HasFma() {
  const cpu::CpuFeatures features = cpu::DetectCpuFeatures();
  return features.avx2 && features.fma;
}

}  // namespace

CpuExpertKernel::CpuExpertKernel(const cpu::ExpertKernel& kernel)
    : kernel_(kernel), fma_(HasFma()) {}

size_t CpuExpertKernel::PreparedBytes(int columns, int group) const {
  return cpu::PreparedBytes(columns, group);
}

void CpuExpertKernel::Prepare(const float* row, int columns, int group, char* prepared) const {
  cpu::QuantizeRow(row, columns, group, prepared);
}

void CpuExpertKernel::Fc1(const ExpertView& expert, const PreparedTokens& in, int begin, int end,
                          float* out, size_t out_stride) const {
  kernel_.fc1(ToCpu(expert), {in.data, in.stride, in.tokens}, begin, end, {out, out_stride});
}

void CpuExpertKernel::Fc2(const ExpertView& expert, const PreparedTokens& in, int begin, int end,
                          float* out, size_t out_stride) const {
  kernel_.fc2(ToCpu(expert), {in.data, in.stride, in.tokens}, begin, end, {out, out_stride});
}

void CpuExpertKernel::Accumulate(float weight, const float* row, size_t count, float* sum) const {
  if (fma_) {
    AccumulateFma(weight, row, count, sum);
  } else {
    ExpertKernel::Accumulate(weight, row, count, sum);
  }
}

}  // namespace stoker::offload
