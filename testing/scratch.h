// What a program makes outside its own memory and must not leave behind, however it ends.
//
//   STOKER_ASSIGN_OR_RETURN(const Scratch folder, Scratch::Folder("stoker_bench"));
//   Write(folder.path() + "/model.safetensors");
//
// A process of its own removes it: when the object goes, or when this process and all that it has
// forked since are gone, be it by Ctrl-C, SIGTERM or SIGKILL. That process is in a session of its
// own, where no signal of the terminal reaches it, and lives no longer than the removal.
//
// Make one before the process starts threads. Movable, not thread-safe. Errors: those of pipe2,
// fork and mkdir, with the path.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace stoker::testing {

class Scratch {
 public:
  // A new folder, mode 0700, in $TMPDIR or /tmp; "<prefix>_<16 hex digits>".
  static absl::StatusOr<Scratch> Folder(absl::string_view prefix);
  // Nothing yet: the shared-memory segments whose names begin with `prefix`, which must be of this
  // process alone (unique_name.h).
  static absl::StatusOr<Scratch> Segments(absl::string_view prefix);

  Scratch(Scratch&& other) noexcept;
  Scratch& operator=(Scratch&&) = delete;
  ~Scratch();

  // Of the folder, or the common beginning of the segments.
  const std::string& path() const { return path_; }

 private:
  Scratch() = default;
  static absl::StatusOr<Scratch> Watch(const std::string& folder, const std::string& prefix);

  std::string path_;
  pid_t remover_ = -1;
  UniqueFd alive_;  // the remover sees its end
};

}  // namespace stoker::testing
