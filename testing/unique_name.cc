#include "testing/unique_name.h"

#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace stoker::testing {

std::string UniqueName(absl::string_view prefix) {
  uint64_t number = 0;
  // Cannot be interrupted or short for up to 256 bytes.
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) std::abort();
  return absl::StrCat(prefix, "-", absl::Hex(number, absl::kZeroPad16));
}

}  // namespace stoker::testing
