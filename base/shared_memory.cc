#include "base/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace stoker {
namespace {

absl::Status CheckRequest(const std::string& name, int64_t bytes) {
  if (name.empty() || name.size() > 200 || name.find('/') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shared memory name \"", name, "\" must have 1 to 200 characters and no slash"));
  }
  if (bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory ", name, " of ", bytes, " bytes; at least 1 is needed"));
  }
  return absl::OkStatus();
}

// Reserves the pages. A sparse segment would be killed by SIGBUS at its first touch instead.
absl::Status Reserve(const std::string& name, int fd, int64_t bytes) {
  int error = 0;
  do {
    error = posix_fallocate(fd, 0, bytes);
  } while (error == EINTR);
  if (error == 0) return absl::OkStatus();
  if (error != ENOSPC && error != EFBIG) {
    return ErrnoStatus(error, absl::StrCat("reserving ", bytes, " bytes of shared memory ", name));
  }
  struct statvfs room {};
  const int64_t free_bytes =
      fstatvfs(fd, &room) == 0 ? static_cast<int64_t>(room.f_bavail) * room.f_frsize : -1;
  return absl::ResourceExhaustedError(
      absl::StrCat("shared memory ", name, " needs ", bytes, " bytes and /dev/shm has ", free_bytes,
                   " free; enlarge it (docker: --shm-size, --ipc=host) or lower the capacity"));
}

absl::Status CheckSegment(const std::string& name, int fd, int64_t bytes, bool exact) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, absl::StrCat("fstat of ", name));
  if (info.st_uid != geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat("shared memory ", name, " belongs to user ",
                                                      info.st_uid, ", not to ", geteuid()));
  }
  if (exact ? info.st_size != bytes : info.st_size < bytes) {
    return absl::FailedPreconditionError(absl::StrCat("shared memory ", name, " has ", info.st_size,
                                                      " bytes where ", bytes, " are expected"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SharedMemory> SharedMemory::Create(const std::string& name, int64_t bytes) {
  STOKER_RETURN_IF_ERROR(CheckRequest(name, bytes));
  const int fd = shm_open(("/" + name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("creating shared memory ", name));
  absl::Cleanup close_fd = [fd] { close(fd); };
  const absl::Status reserved = Reserve(name, fd, bytes);
  absl::StatusOr<SharedMemory> segment =
      reserved.ok() ? Map(name, fd, bytes, /*write=*/true) : absl::StatusOr<SharedMemory>(reserved);
  if (!segment.ok()) {
    shm_unlink(("/" + name).c_str());
    return segment;
  }
  segment->owns_name_ = true;
  return segment;
}

absl::StatusOr<SharedMemory> SharedMemory::Open(const std::string& name, int64_t bytes) {
  STOKER_RETURN_IF_ERROR(CheckRequest(name, bytes));
  const int fd = shm_open(("/" + name).c_str(), O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) {
    return ErrnoStatus(errno, absl::StrCat("opening shared memory ", name,
                                           " (do all ranks share one IPC namespace?)"));
  }
  absl::Cleanup close_fd = [fd] { close(fd); };
  STOKER_RETURN_IF_ERROR(CheckSegment(name, fd, bytes, /*exact=*/true));
  return Map(name, fd, bytes, /*write=*/true);
}

absl::StatusOr<SharedMemory> SharedMemory::OpenForReading(const std::string& name, int64_t bytes) {
  STOKER_RETURN_IF_ERROR(CheckRequest(name, bytes));
  const int fd = shm_open(("/" + name).c_str(), O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("opening shared memory ", name));
  absl::Cleanup close_fd = [fd] { close(fd); };
  STOKER_RETURN_IF_ERROR(CheckSegment(name, fd, bytes, /*exact=*/false));
  return Map(name, fd, bytes, /*write=*/false);
}

absl::StatusOr<SharedMemory> SharedMemory::Map(const std::string& name, int fd, int64_t bytes,
                                               bool write) {
  void* data = mmap(nullptr, static_cast<size_t>(bytes), write ? PROT_READ | PROT_WRITE : PROT_READ,
                    MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("mapping ", bytes, " bytes of shared memory ", name));
  }
  SharedMemory segment;
  segment.name_ = name;
  segment.data_ = data;
  segment.bytes_ = bytes;
  return segment;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    Release();
    name_ = std::move(other.name_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    owns_name_ = std::exchange(other.owns_name_, false);
  }
  return *this;
}

SharedMemory::~SharedMemory() { Release(); }

void SharedMemory::Unlink() {
  if (std::exchange(owns_name_, false)) shm_unlink(("/" + name_).c_str());
}

void SharedMemory::Leak() {
  data_ = nullptr;
  owns_name_ = false;
}

void SharedMemory::Remove(const std::string& name) { shm_unlink(("/" + name).c_str()); }

void SharedMemory::Release() {
  Unlink();
  if (data_ != nullptr) munmap(std::exchange(data_, nullptr), static_cast<size_t>(bytes_));
}

}  // namespace stoker
