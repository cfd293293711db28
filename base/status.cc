#include "base/status.h"

namespace stoker {

absl::Status ErrnoStatus(int error, absl::string_view what) {
  return absl::ErrnoToStatus(error, what);
}

}  // namespace stoker
