// absl::Status helpers that this Abseil release does not have, and the one place where errno
// becomes a Status. Thread-safe; nothing here allocates on success.
#pragma once

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// Returns from the enclosing function with the status of `expr` unless it is OK.
#define STOKER_RETURN_IF_ERROR(expr)                                  \
  do {                                                                \
    if (absl::Status stoker_status_ = (expr); !stoker_status_.ok()) { \
      return stoker_status_;                                          \
    }                                                                 \
  } while (false)

// STOKER_ASSIGN_OR_RETURN(auto x, MakeX());
#define STOKER_ASSIGN_OR_RETURN(lhs, expr) \
  STOKER_ASSIGN_OR_RETURN_IMPL_(STOKER_CONCAT_(stoker_or_, __LINE__), lhs, expr)
#define STOKER_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expr) \
  auto statusor = (expr);                                  \
  if (!statusor.ok()) return statusor.status();            \
  lhs = std::move(statusor).value()
#define STOKER_CONCAT_(a, b) STOKER_CONCAT_IMPL_(a, b)
#define STOKER_CONCAT_IMPL_(a, b) a##b

namespace stoker {

// "what: message of the error" with the canonical code that absl assigns to the errno value.
absl::Status ErrnoStatus(int error, absl::string_view what);

}  // namespace stoker
