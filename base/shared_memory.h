// A named POSIX shared-memory segment, mode 0600, mapped read-write.
//
// Ownership: the segment is unmapped when the object goes; the name is removed by its creator's
// destructor or by Unlink, whichever is first. A process that dies leaves the name behind; a child
// made by fork never removes its parent's. Created and opened segments hold a shared file lock,
// which the kernel drops however their process ends: a name without one has been abandoned.
// Not thread-safe; the memory is, as its users agree.
// Errors: kInvalidArgument (name, fewer bytes than 1), kAlreadyExists, kNotFound,
// kResourceExhausted with the bytes wanted and free when /dev/shm has no room (the pages are
// reserved at creation, so touching them later cannot raise SIGBUS), kFailedPrecondition when the
// segment belongs to another user or has another size.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace stoker {

class SharedMemory {
 public:
  // `name` without a slash, at most 200 characters.
  static absl::StatusOr<SharedMemory> Create(const std::string& name, int64_t bytes);
  static absl::StatusOr<SharedMemory> Open(const std::string& name, int64_t bytes);
  // Maps an existing segment for reading whatever its size; for inspection by other processes.
  static absl::StatusOr<SharedMemory> OpenForReading(const std::string& name, int64_t bytes);

  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  const std::string& name() const { return name_; }
  // Removes the name; mappings stay. Idempotent.
  void Unlink();
  // Forgets the mapping and the name, which stay: for memory that somebody may still use.
  void Leak();
  // Removes a name whose creator may have died; mappings stay. No error if there is none.
  static void Remove(const std::string& name);
  // Removes this user's names with that prefix that have been abandoned. Returns how many.
  static int RemoveAbandoned(const std::string& prefix);

 private:
  static absl::StatusOr<SharedMemory> Map(const std::string& name, UniqueFd fd, int64_t bytes,
                                          bool write);
  void Release();

  std::string name_;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  pid_t creator_ = 0;  // while the name is ours to remove
  UniqueFd lock_;
};

}  // namespace stoker
