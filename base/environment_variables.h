// The environment variables that Stoker's C++ code reads: a documented field and a row of the table
// each. They are read once, where a program starts, or a group or an engine is created, and passed
// on as values. Those of the Python package are in python/stoker/environment_variables.py; those
// that only tests read in testing/README.md (tools/checks/environment_variables.py keeps all three
// true).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace stoker {

struct EnvironmentVariables {
  // STOKER_TIMEOUT_MS: how long a launch may wait for its peers, in milliseconds, 1 to 86400000 (24
  // h). Unset: 600 s until 100 launches have completed, 20 s from then on. Set: the value for both.
  std::optional<int64_t> timeout_ms;
  // STOKER_CPU_KERNEL: the kernel of offload/cpu/kernels.inc that runs the CPU experts; empty: the
  // fastest that this CPU runs. ChooseKernel refuses what is no name.
  std::string cpu_kernel;

  struct Row {
    const char* name;
    const char* values;
    const char* meaning;
    const char* read_by;
  };

  using Getter = std::function<const char*(const char*)>;
  // Reads the process's environment, or what `getter` gives. InvalidArgument names the variable,
  // its value and what is allowed.
  static absl::StatusOr<EnvironmentVariables> Read(const Getter& getter = nullptr);
  // All of them.
  static const std::vector<Row>& Rows();
  // The rows as text, one line a variable.
  static std::string Table();
};

}  // namespace stoker
