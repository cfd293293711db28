// CRC-32C (Castagnoli; RFC 3720, section B.4) of bytes, by the CPU's instruction where it has one.
// Crc32c("123456789") == 0xE3069283. To continue, pass what came before. Thread-safe.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace stoker::offload {

uint32_t Crc32c(absl::string_view bytes, uint32_t before = 0);

// Without the instruction, for tests.
uint32_t Crc32cByTable(absl::string_view bytes, uint32_t before = 0);

}  // namespace stoker::offload
