#include "base/shared_memory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
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

// Waits for a sweep alone, which holds its lock for three system calls.
absl::Status LockShared(const std::string& name, int fd) {
  while (flock(fd, LOCK_SH) != 0) {
    if (errno != EINTR) return ErrnoStatus(errno, absl::StrCat("locking shared memory ", name));
  }
  return absl::OkStatus();
}

// A new segment, locked. RemoveAbandoned may take its name before it is: then another is made.
absl::StatusOr<UniqueFd> CreateLocked(const std::string& name) {
  for (;;) {
    UniqueFd fd(shm_open(("/" + name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (fd.get() < 0) return ErrnoStatus(errno, absl::StrCat("creating shared memory ", name));
    const absl::Status locked = LockShared(name, fd.get());
    if (!locked.ok()) {
      shm_unlink(("/" + name).c_str());
      return locked;
    }
    struct stat info {};
    if (fstat(fd.get(), &info) != 0 || info.st_nlink > 0) return fd;
  }
}

bool RemoveIfAbandoned(const std::string& name) {
  const UniqueFd fd(shm_open(("/" + name).c_str(), O_RDONLY | O_CLOEXEC, 0));
  struct stat info {};
  // One that its creator has removed meanwhile has no name: that of now is another segment's.
  return fd.get() >= 0 && flock(fd.get(), LOCK_EX | LOCK_NB) == 0 && fstat(fd.get(), &info) == 0 &&
         info.st_uid == geteuid() && info.st_nlink > 0 && shm_unlink(("/" + name).c_str()) == 0;
}

}  // namespace

absl::StatusOr<SharedMemory> SharedMemory::Create(const std::string& name, int64_t bytes) {
  STOKER_RETURN_IF_ERROR(CheckRequest(name, bytes));
  STOKER_ASSIGN_OR_RETURN(UniqueFd fd, CreateLocked(name));
  const absl::Status reserved = Reserve(name, fd.get(), bytes);
  absl::StatusOr<SharedMemory> segment = reserved.ok()
                                             ? Map(name, std::move(fd), bytes, /*write=*/true)
                                             : absl::StatusOr<SharedMemory>(reserved);
  if (!segment.ok()) {
    shm_unlink(("/" + name).c_str());
    return segment;
  }
  segment->creator_ = getpid();
  return segment;
}

absl::StatusOr<SharedMemory> SharedMemory::Open(const std::string& name, int64_t bytes) {
  STOKER_RETURN_IF_ERROR(CheckRequest(name, bytes));
  UniqueFd fd(shm_open(("/" + name).c_str(), O_RDWR | O_CLOEXEC, 0));
  if (fd.get() < 0) {
    return ErrnoStatus(errno, absl::StrCat("opening shared memory ", name,
                                           " (do all ranks share one IPC namespace?)"));
  }
  STOKER_RETURN_IF_ERROR(LockShared(name, fd.get()));
  STOKER_RETURN_IF_ERROR(CheckSegment(name, fd.get(), bytes, /*exact=*/true));
  return Map(name, std::move(fd), bytes, /*write=*/true);
}

absl::StatusOr<SharedMemory> SharedMemory::OpenForReading(const std::string& name, int64_t bytes) {
  STOKER_RETURN_IF_ERROR(CheckRequest(name, bytes));
  UniqueFd fd(shm_open(("/" + name).c_str(), O_RDONLY | O_CLOEXEC, 0));
  if (fd.get() < 0) return ErrnoStatus(errno, absl::StrCat("opening shared memory ", name));
  STOKER_RETURN_IF_ERROR(CheckSegment(name, fd.get(), bytes, /*exact=*/false));
  return Map(name, std::move(fd), bytes, /*write=*/false);
}

absl::StatusOr<SharedMemory> SharedMemory::Map(const std::string& name, UniqueFd fd, int64_t bytes,
                                               bool write) {
  void* data = mmap(nullptr, static_cast<size_t>(bytes), write ? PROT_READ | PROT_WRITE : PROT_READ,
                    MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("mapping ", bytes, " bytes of shared memory ", name));
  }
  SharedMemory segment;
  segment.name_ = name;
  segment.data_ = data;
  segment.bytes_ = bytes;
  segment.lock_ = std::move(fd);
  return segment;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    Release();
    name_ = std::move(other.name_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    creator_ = std::exchange(other.creator_, 0);
    lock_ = std::move(other.lock_);
  }
  return *this;
}

SharedMemory::~SharedMemory() { Release(); }

void SharedMemory::Unlink() {
  if (std::exchange(creator_, 0) == getpid()) shm_unlink(("/" + name_).c_str());
}

void SharedMemory::Leak() {
  data_ = nullptr;
  creator_ = 0;
  lock_.Release();
}

void SharedMemory::Remove(const std::string& name) { shm_unlink(("/" + name).c_str()); }

int SharedMemory::RemoveAbandoned(const std::string& prefix) {
  int removed = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", error)) {
    const std::string name = entry.path().filename();
    if (absl::StartsWith(name, prefix) && RemoveIfAbandoned(name)) ++removed;
  }
  return removed;
}

void SharedMemory::Release() {
  Unlink();
  if (data_ != nullptr) munmap(std::exchange(data_, nullptr), static_cast<size_t>(bytes_));
  lock_ = UniqueFd();
}

}  // namespace stoker
