#include "offload/store/crc32c.h"

#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstring>

namespace stoker::offload {
namespace {

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

[[gnu::target("sse4.2")]] uint32_t ByInstruction(absl::string_view bytes, uint32_t before) {
  uint64_t crc = ~before;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, sizeof(word));
    crc = _mm_crc32_u64(crc, word);
  }
  auto narrow = static_cast<uint32_t>(crc);
  for (; i < bytes.size(); ++i) {
    narrow = _mm_crc32_u8(narrow, static_cast<unsigned char>(bytes[i]));
  }
  return ~narrow;
}

}  // namespace

uint32_t Crc32cByTable(absl::string_view bytes, uint32_t before) {
  uint32_t crc = ~before;
  for (const char c : bytes) {
    crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  }
  return ~crc;
}

uint32_t Crc32c(absl::string_view bytes, uint32_t before) {
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  return has_instruction ? ByInstruction(bytes, before) : Crc32cByTable(bytes, before);
}

}  // namespace stoker::offload
