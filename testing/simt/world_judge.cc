// What came of a schedule: each launch as it completes, and all of it at the end.
#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_format.h"
#include "testing/simt/world.h"
#include "testing/simt/world_parts.h"

namespace stoker::testing::simt {

const char* VerdictName(Verdict verdict) {
  constexpr const char* kNames[] = {"right",       "hang",      "wrong bits",
                                    "false alarm", "no report", "broken machine"};
  return kNames[static_cast<int>(verdict)];
}

void World::Check(int rank, int number, bool negated) {
  Launch& launch = *launches_[static_cast<size_t>(number * scenario_.world + rank)];
  const size_t bytes = static_cast<size_t>(launch.kernel.norm.tokens) *
                       static_cast<size_t>(scenario_.packets) * comm::kPacketBytes;
  const uint16_t* outputs[2] = {At<uint16_t>(launch.residual_out),
                                At<uint16_t>(arrays_->norm_out[rank])};
  moe::NormResult negative = launch.expected;
  for (size_t i = 0; negated && i < negative.residual_out.size(); ++i) {
    if (negative.residual_out[i] == 0) continue;  // x - x is +0, whatever x is
    negative.residual_out[i] ^= 0x8000u;
    negative.norm_out[i] ^= 0x8000u;
  }
  const moe::Rows* expected[2] = {&negative.residual_out, &negative.norm_out};
  // A peer of a rank with bad indices may complete before it is told, and then holds NaN for the
  // tokens that the rank could not give and right values for others.
  const bool mixture = scenario_.fault.index_out_of_range && rank != scenario_.fault.rank;
  bool right = true, nan = true;
  for (int k = 0; k < 2; ++k) {
    right = right && expected[k]->size() * 2 == bytes &&
            std::memcmp(outputs[k], expected[k]->data(), bytes) == 0;
    for (size_t i = 0; i < bytes / 2; ++i) {
      nan = nan && (outputs[k][i] == comm::kStoredNan ||
                    (mixture && i < expected[k]->size() && outputs[k][i] == (*expected[k])[i]));
    }
  }
  launch.result =
      right ? Launch::Result::kRight : (nan ? Launch::Result::kNan : Launch::Result::kWrong);
  const bool nobodys = scenario_.fault.dies && rank == scenario_.fault.rank;
  if (right || nan || nobodys || scenario_.outside || !first_wrong_.empty()) return;
  for (int k = 0; k < 2; ++k) {
    for (size_t i = 0; i < std::min(bytes / 2, expected[k]->size()); ++i) {
      if (outputs[k][i] == (*expected[k])[i]) continue;
      first_wrong_ = absl::StrFormat("rank %d launch %d %s element %d of %d: %04x instead of %04x",
                                     rank, number, k == 0 ? "residual_out" : "norm_out", i,
                                     bytes / 2, outputs[k][i], (*expected[k])[i]);
      return;
    }
  }
  first_wrong_ = absl::StrFormat("rank %d launch %d: other tokens", rank, number);
}

Verdict World::Judge(const std::string& wrong, std::string* what) const {
  *what = wrong;
  if (!wrong.empty()) return machine_->hung() ? Verdict::kHang : Verdict::kBrokenMachine;
  *what = first_wrong_;
  if (!first_wrong_.empty()) return Verdict::kWrongBits;
  *what = incomplete_record_;
  if (!incomplete_record_.empty()) return Verdict::kNoReport;
  bool reported = false, all_stopped = true;
  for (int r = 0; r < scenario_.world; ++r) {
    const comm::FailureRecord& record = At<comm::RankHealth>(arrays_->health[r])->record;
    if (record.valid != 0u) {
      reported = true;
      *what =
          absl::StrFormat("rank %d reports code %d, peer %d, token %d, epoch %d", r,
                          static_cast<int>(record.code), record.peer, record.token, record.epoch);
      if ((scenario_.codes >> static_cast<int>(record.code) & 1u) == 0u) {
        return Verdict::kFalseAlarm;
      }
    }
    all_stopped = all_stopped && comm::ControlOf(At<void>(arrays_->workspace[r]))->abort != 0u;
  }
  bool all_right = true;
  for (size_t i = 0; i < launches_.size(); ++i) {
    const int number = static_cast<int>(i) / scenario_.world;
    if (number < scenario_.reset_before) continue;
    all_right = all_right && launches_[i]->result == Launch::Result::kRight;
  }
  // A launch that may overlap need not; and one that begins when the launch before has arrived, but
  // not completed, cannot be told from one that waited.
  if (scenario_.fault.overlaps && !reported) return Verdict::kRight;
  if (scenario_.codes != 0u) {
    if (!reported || !all_stopped) {
      *what = reported ? "not every rank was stopped" : "no failure was reported";
      return Verdict::kNoReport;
    }
    if (machine_->clock_ns() > scenario_.end_ns) {
      *what = absl::StrFormat("the last launch ended at %d ns instead of %d", machine_->clock_ns(),
                              scenario_.end_ns);
      return Verdict::kNoReport;
    }
    return Verdict::kRight;
  }
  if (!all_right) {
    *what = "a launch ended in NaN without a failure";
    return Verdict::kWrongBits;
  }
  return Verdict::kRight;
}

}  // namespace stoker::testing::simt
