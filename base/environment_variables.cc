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
  const auto get = [&](const char* name) { return getter ? getter(name) : std::getenv(name); };
  const char* timeout = get("STOKER_TIMEOUT_MS");
  if (timeout != nullptr && *timeout != '\0') {
    int64_t value = 0;
    if (!absl::SimpleAtoi(timeout, &value) || value < 1 || value > kTimeoutMsMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "STOKER_TIMEOUT_MS is \"", timeout, "\"; it must be a whole number of ",
          "milliseconds from 1 to ", kTimeoutMsMax, " (24 h). Unset it for the default."));
    }
    variables.timeout_ms = value;
  }
  if (const char* kernel = get("STOKER_CPU_KERNEL"); kernel != nullptr) {
    variables.cpu_kernel = kernel;
  }
  return variables;
}

const std::vector<EnvironmentVariables::Row>& EnvironmentVariables::Rows() {
  static const auto* rows = new std::vector<Row>{
      {"STOKER_TIMEOUT_MS", "1 to 86400000",
       "how long a launch may wait for its peers; default 600000 for the first 100 launches, then "
       "20000",
       "every group, when it is created"},
      {"STOKER_CPU_KERNEL", "a kernel's name",
       "runs the CPU experts with that kernel of offload/cpu/kernels.inc, to compare; default the "
       "fastest that the CPU runs",
       "offload_experts, stoker offload"},
  };
  return *rows;
}

std::string EnvironmentVariables::Table() {
  std::string table;
  for (const Row& row : Rows()) {
    absl::StrAppend(&table, "  ", row.name, " (", row.values, "): ", row.meaning, ". Read by ",
                    row.read_by, ".\n");
  }
  return table;
}

}  // namespace stoker
