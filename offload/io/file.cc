#include "offload/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace stoker::offload {
namespace {

FileIdentity FromStat(const struct stat& s) {
  return {static_cast<uint64_t>(s.st_dev), static_cast<uint64_t>(s.st_ino),
          static_cast<uint64_t>(s.st_size),
          static_cast<int64_t>(s.st_mtim.tv_sec) * 1'000'000'000 + s.st_mtim.tv_nsec};
}

class PosixFile : public File {
 public:
  PosixFile(std::string path, UniqueFd fd, UniqueFd direct)
      : path_(std::move(path)), fd_(std::move(fd)), direct_(std::move(direct)) {}

  int fd() const override { return fd_.get(); }
  int direct_fd() const override { return direct_.get(); }

  const std::string& path() const override { return path_; }

  absl::StatusOr<FileIdentity> Identity() const override {
    struct stat s;
    if (fstat(fd_.get(), &s) != 0) return ErrnoStatus(errno, path_);
    return FromStat(s);
  }

  absl::StatusOr<FileIdentity> IdentityOfPath() const override {
    struct stat s;
    if (stat(path_.c_str(), &s) != 0) return ErrnoStatus(errno, path_);
    return FromStat(s);
  }

  absl::StatusOr<size_t> ReadAt(uint64_t offset, absl::Span<char> into) const override {
    if (offset > static_cast<uint64_t>(INT64_MAX)) {
      return absl::OutOfRangeError(absl::StrCat(path_, ": offset ", offset, " exceeds 2^63 - 1"));
    }
    // Linux transfers at most this much in one call.
    const size_t size = std::min<size_t>(into.size(), 0x7ffff000);
    ssize_t got;
    do {
      got = pread(fd_.get(), into.data(), size, static_cast<off_t>(offset));
    } while (got < 0 && errno == EINTR);
    if (got < 0) return ErrnoStatus(errno, absl::StrCat(path_, ": read at offset ", offset));
    return static_cast<size_t>(got);
  }

 private:
  const std::string path_;
  const UniqueFd fd_;
  const UniqueFd direct_;
};

// The same file without the page cache, or nothing where the file system does not say that 4 KiB
// are enough alignment (STATX_DIOALIGN), or says so and refuses.
UniqueFd OpenDirect(int fd) {
  struct statx s;
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &s) != 0) return UniqueFd();
  const auto fits = [](uint32_t align) { return align != 0 && kDirectAlignment % align == 0; };
  if ((s.stx_mask & STATX_DIOALIGN) == 0 || !fits(s.stx_dio_mem_align) ||
      !fits(s.stx_dio_offset_align)) {
    return UniqueFd();
  }
  // By its descriptor: the name may belong to another file by now.
  const std::string self = absl::StrCat("/proc/self/fd/", fd);
  UniqueFd direct(open(self.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
  if (direct.get() < 0) return UniqueFd();
  alignas(kDirectAlignment) char page[kDirectAlignment];
  if (pread(direct.get(), page, sizeof(page), 0) < 0) return UniqueFd();
  return direct;
}

}  // namespace

absl::StatusOr<std::unique_ptr<File>> OpenPosixFile(const std::string& path) {
  // O_NONBLOCK: a named pipe is refused below instead of being waited for. Files ignore it.
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return ErrnoStatus(errno, absl::StrCat("open ", path));
  struct stat s;
  if (fstat(fd.get(), &s) != 0) return ErrnoStatus(errno, path);
  if (!S_ISREG(s.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  UniqueFd direct = OpenDirect(fd.get());
  return std::unique_ptr<File>(new PosixFile(path, std::move(fd), std::move(direct)));
}

absl::Status ReadFully(const File& file, uint64_t offset, absl::Span<char> into) {
  while (!into.empty()) {
    STOKER_ASSIGN_OR_RETURN(const size_t got, file.ReadAt(offset, into));
    if (got == 0 || got > into.size()) {
      return absl::DataLossError(absl::StrCat(file.path(), ": the file ends at offset ", offset,
                                              ", ", into.size(), " bytes short"));
    }
    offset += got;
    into.remove_prefix(got);
  }
  return absl::OkStatus();
}

absl::Status CheckUnchanged(const File& file, const FileIdentity& at_open) {
  STOKER_ASSIGN_OR_RETURN(const FileIdentity open_now, file.Identity());
  STOKER_ASSIGN_OR_RETURN(const FileIdentity named_now, file.IdentityOfPath());
  if (open_now == at_open && named_now == at_open) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(file.path(), " was replaced or changed while it was open; open it again"));
}

}  // namespace stoker::offload
