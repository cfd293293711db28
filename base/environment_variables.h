// Every environment variable that Stoker reads, one documented field each. They are read once,
// where a program starts or a group is created, and passed on as values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace stoker {

struct EnvironmentVariables {
  // STOKER_TIMEOUT_MS: how long a launch may wait for its peers, in milliseconds, 1 to 86400000 (24
  // h). Unset: 600 s until 100 launches have completed, 20 s from then on. Set: the value for both.
  std::optional<int64_t> timeout_ms;

  using Getter = std::function<const char*(const char*)>;
  // Reads the process's environment, or what `getter` gives. InvalidArgument names the variable,
  // its value and what is allowed.
  static absl::StatusOr<EnvironmentVariables> Read(const Getter& getter = nullptr);
  // The table of the documentation, one line a variable.
  static std::string Table();
};

}  // namespace stoker
