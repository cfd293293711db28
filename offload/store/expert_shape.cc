#include "offload/store/expert_shape.h"

#include <cstdint>
#include <cstring>

namespace stoker::offload {

const char* PartName(int part) {
  constexpr const char* kNames[] = {
      "gate weights", "up weights",       "down weights",   "gate scales",      "up scales",
      "down scales",  "gate zero points", "up zero points", "down zero points", "record"};
  return kNames[part];
}

size_t ScaleBytes(ScaleType type) { return type == ScaleType::kFp32 ? 4 : 2; }

const char* ScaleTypeName(ScaleType type) {
  if (type == ScaleType::kBf16) return "bf16";
  return type == ScaleType::kFp16 ? "fp16" : "fp32";
}

bool FiniteScales(absl::string_view scales, ScaleType type) {
  // All bits of the exponent set: infinite or not a number.
  if (type == ScaleType::kFp32) {
    for (size_t i = 0; i + 4 <= scales.size(); i += 4) {
      uint32_t bits;
      std::memcpy(&bits, scales.data() + i, sizeof(bits));
      if ((bits & 0x7f800000) == 0x7f800000) return false;
    }
    return true;
  }
  const uint16_t exponent = type == ScaleType::kBf16 ? 0x7f80 : 0x7c00;
  for (size_t i = 0; i + 2 <= scales.size(); i += 2) {
    uint16_t bits;
    std::memcpy(&bits, scales.data() + i, sizeof(bits));
    if ((bits & exponent) == exponent) return false;
  }
  return true;
}

}  // namespace stoker::offload
