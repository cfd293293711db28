// Names that no other test run of this machine uses at the same time. Process numbers do not serve:
// sandboxes have their own, equal ones, and share /dev/shm and the names of sockets.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace stoker::testing {

// "<prefix>-<16 random hex digits>"; of letters, digits and '-' if the prefix is.
std::string UniqueName(absl::string_view prefix);

}  // namespace stoker::testing
