// A file that is read at offsets. The seam below which tests put faults.
//
//   STOKER_ASSIGN_OR_RETURN(std::unique_ptr<File> file, OpenPosixFile(path));
//   STOKER_RETURN_IF_ERROR(ReadFully(*file, offset, into));
//
// Thread-safe: any number of threads may read at once. Files are never mapped: a truncated mapping
// kills the process, a truncated read is an error. Errors name the path and the offset.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace stoker::offload {

// What changes when a file is replaced or written while it is open.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size = 0;
  int64_t modified_ns = 0;
  bool operator==(const FileIdentity&) const = default;
};

// What a direct read is aligned to; a file system that wants more has no direct descriptor.
inline constexpr uint64_t kDirectAlignment = 4096;

class File {
 public:
  virtual ~File() = default;
  virtual const std::string& path() const = 0;
  // Of the file that is open, not of whatever has its name now.
  virtual absl::StatusOr<FileIdentity> Identity() const = 0;
  // Of the file that has the name now.
  virtual absl::StatusOr<FileIdentity> IdentityOfPath() const = 0;
  // Descriptors for who reads by other means than ReadAt; -1 where there is none. They stay the
  // file's.
  virtual int fd() const { return -1; }
  // Bypasses the page cache; offsets, sizes and addresses must be multiples of kDirectAlignment.
  virtual int direct_fd() const { return -1; }
  // One read: may return fewer bytes than asked for; 0 only at the end of the file.
  virtual absl::StatusOr<size_t> ReadAt(uint64_t offset, absl::Span<char> into) const = 0;
};

using FileOpener = std::function<absl::StatusOr<std::unique_ptr<File>>(const std::string& path)>;

absl::StatusOr<std::unique_ptr<File>> OpenPosixFile(const std::string& path);

// Reads until `into` is full. DataLoss when the file ends before.
absl::Status ReadFully(const File& file, uint64_t offset, absl::Span<char> into);

// FailedPrecondition when the open file or its name no longer has the identity it had at open.
absl::Status CheckUnchanged(const File& file, const FileIdentity& at_open);

}  // namespace stoker::offload
