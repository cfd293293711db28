#include "base/environment_variables.h"

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace stoker {
namespace {
constexpr int64_t kTimeoutMsMax = 24ll * 3600 * 1000;
}  // namespace

absl::StatusOr<EnvironmentVariables> EnvironmentVariables::Read(const Getter& getter) {
  EnvironmentVariables variables;
  const char* timeout = getter ? getter("STOKER_TIMEOUT_MS") : std::getenv("STOKER_TIMEOUT_MS");
  if (timeout != nullptr && *timeout != '\0') {
    int64_t value = 0;
    if (!absl::SimpleAtoi(timeout, &value) || value < 1 || value > kTimeoutMsMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "STOKER_TIMEOUT_MS is \"", timeout, "\"; it must be a whole number of ",
          "milliseconds from 1 to ", kTimeoutMsMax, " (24 h). Unset it for the default."));
    }
    variables.timeout_ms = value;
  }
  return variables;
}

std::string EnvironmentVariables::Table() {
  return "STOKER_TIMEOUT_MS  1..86400000  how long a launch may wait for its peers; default 600000 "
         "for "
         "the first 100 launches, then 20000\n";
}

}  // namespace stoker
