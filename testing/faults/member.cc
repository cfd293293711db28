#include "testing/faults/member.h"

#include <algorithm>

#include "moe/reference.h"

namespace stoker::testing {
namespace {

void PutSentinels(Inputs& inputs) {
  auto& rows = inputs.rows;
  for (size_t word = 0; 2 * word + 1 < rows.size(); word += 2) {
    rows[2 * word] = rows[2 * word + 1] = 0xFFFFu;
  }
}

}  // namespace

FaultData MakeFaultData(const FaultLaunch& launch, int rank, int world) {
  const moe::Shape& shape = launch.inputs.shape;
  std::vector<Inputs> all;
  for (int r = 0; r < world; ++r) {
    all.push_back(MakeInputs(launch.inputs, r));
    if (r == launch.sentinel_rank) PutSentinels(all.back());
  }
  FaultData data;
  if (launch.plain) {
    const int64_t elements = int64_t{shape.tokens} * shape.hidden;
    std::vector<moe::Rows> partials;
    for (const Inputs& in : all) {
      partials.emplace_back(in.rows.begin(), in.rows.begin() + elements);
    }
    data.expected = moe::ReferenceSumAndNorm(shape, partials, all[0].norm);
  } else {
    data.expected = Expected(shape, all);
  }
  data.inputs = std::move(all[static_cast<size_t>(rank)]);
  if (launch.bad_index) {
    data.inputs.indices[0] = static_cast<int32_t>(data.inputs.finalize.row_count) + 5;
  }
  return data;
}

FaultResult JudgeOutputs(const moe::NormResult& expected, const moe::NormResult& actual) {
  if (actual.residual_out == expected.residual_out && actual.norm_out == expected.norm_out) {
    return FaultResult::kRight;
  }
  bool nan = true;
  for (const auto* rows : {&actual.residual_out, &actual.norm_out}) {
    for (uint16_t element : *rows) nan = nan && element == comm::kStoredNan;
  }
  if (nan) return FaultResult::kNan;
  const auto mixed = [](const moe::Rows& right, const moe::Rows& rows) {
    return std::equal(right.begin(), right.end(), rows.begin(), rows.end(),
                      [](uint16_t a, uint16_t b) { return a == b || b == comm::kStoredNan; });
  };
  return mixed(expected.residual_out, actual.residual_out) &&
                 mixed(expected.norm_out, actual.norm_out)
             ? FaultResult::kMixed
             : FaultResult::kOther;
}

}  // namespace stoker::testing
