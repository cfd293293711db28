#include "offload/pack/pack.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "offload/pack/expert_source.h"
#include "offload/store/crc32c.h"
#include "offload/store/sidecar.h"

namespace stoker::offload {
namespace {

// What stands in OUT.partial before the experts that are done get their checksums: no CRC of 0 is
// taken for a record that was not written, since a record is read before it is believed.
class Packer {
 public:
  Packer(ExpertSource& source, std::string out, const PackOptions& options)
      : source_(source),
        out_(std::move(out)),
        partial_(out_ + ".partial"),
        options_(options),
        layout_(source.shape()) {
    index_.shape = source.shape();
    index_.architecture = source.architecture();
    index_.layers = source.layers();
    index_.experts = source.experts();
    index_.source = source.fingerprint();
    index_.checksums.assign(Records() * index_.ChecksumsOfExpert(layout_), 0);
    record_.resize(layout_.bytes);
  }

  absl::StatusOr<PackResult> Run() {
    STOKER_RETURN_IF_ERROR(OpenPartial());
    STOKER_RETURN_IF_ERROR(Reserve());
    PackResult result;
    result.format = source_.format();
    result.experts = Records();
    result.file_bytes = index_.FileBytes(layout_);
    for (int64_t i = 0; i < Records(); ++i) {
      if (kept_ && Holds(i)) {
        ++result.resumed;
      } else {
        STOKER_RETURN_IF_ERROR(PackRecord(i));
      }
      if (options_.progress && !options_.progress(i + 1, Records())) {
        return absl::CancelledError(absl::StrCat(partial_, " holds ", i + 1, " of ", Records(),
                                                 " experts; pack again to go on"));
      }
    }
    STOKER_RETURN_IF_ERROR(Finish());
    for (int64_t i = 0; i < Records(); ++i) {
      if (!Holds(i)) return Damaged(i);
      ExpertBytes parts;
      layout_.Gather(record_, &parts);
      if (PartsChecksum(parts) != Checksums(i)[layout_.chunks.size()]) return Damaged(i);
      for (const std::string& part : parts) result.checksum = Crc32c(part, result.checksum);
    }
    if (std::rename(partial_.c_str(), out_.c_str()) != 0) return ErrnoStatus(errno, out_);
    STOKER_RETURN_IF_ERROR(SyncDirectory());
    return result;
  }

 private:
  int64_t Records() const { return static_cast<int64_t>(index_.layers.size()) * index_.experts; }
  uint32_t* Checksums(int64_t i) {
    return index_.checksums.data() + i * index_.ChecksumsOfExpert(layout_);
  }
  uint64_t Offset(int64_t i) const { return index_.DataBegin(layout_) + i * layout_.bytes; }

  absl::Status Damaged(int64_t i) const {
    return absl::DataLossError(absl::StrCat(partial_, ": layer ", index_.layers[i / index_.experts],
                                            ", expert ", i % index_.experts, " at offset ",
                                            Offset(i), " is not what was written; check the disk"));
  }

  absl::Status OpenPartial() {
    auto left = options_.opener(partial_);
    if (left.ok()) {
      auto index = ReadSidecarIndex(**left, /*incomplete_too=*/true);
      kept_ = index.ok() && index->shape == index_.shape && index->layers == index_.layers &&
              index->experts == index_.experts && index->source == index_.source;
      if (kept_) index_.checksums = std::move(index->checksums);
    }
    fd_ = UniqueFd(open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (fd_.get() < 0) return ErrnoStatus(errno, partial_);
    if (flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(partial_, " is being written by another process; wait for it"));
    }
    return absl::OkStatus();
  }

  // Says that the space does not suffice before anything is written, and takes it.
  absl::Status Reserve() {
    const uint64_t bytes = index_.FileBytes(layout_);
    struct stat file;
    struct statvfs system;
    if (fstat(fd_.get(), &file) != 0 || fstatvfs(fd_.get(), &system) != 0) {
      return ErrnoStatus(errno, partial_);
    }
    const uint64_t taken = static_cast<uint64_t>(file.st_blocks) * 512;
    const uint64_t free = static_cast<uint64_t>(system.f_bavail) * system.f_frsize;
    const auto full = [&] {
      return absl::ResourceExhaustedError(
          absl::StrCat(out_, " needs ", bytes, " bytes, ", taken, " are taken and ", free,
                       " free; free some or choose another file system"));
    };
    if (bytes > taken && bytes - taken > free) return full();
    if (!kept_ && ftruncate(fd_.get(), 0) != 0) return ErrnoStatus(errno, partial_);
    const int error = posix_fallocate(fd_.get(), 0, static_cast<off_t>(bytes));
    if (error == ENOSPC || error == EDQUOT || error == EFBIG) return full();
    if (error != 0) return ErrnoStatus(error, partial_);
    if (ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) return ErrnoStatus(errno, partial_);
    return WriteIndex();
  }

  absl::Status Write(uint64_t offset, absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return ErrnoStatus(n < 0 ? errno : EIO, partial_);
      bytes.remove_prefix(n);
      offset += n;
    }
    return absl::OkStatus();
  }

  absl::Status WriteIndex() { return Write(0, EncodeSidecarIndex(index_, layout_)); }

  // Reads record i into record_; whether its chunks have their checksums.
  bool Holds(int64_t i) {
    size_t got = 0;
    while (got < record_.size()) {
      const ssize_t n = pread(fd_.get(), record_.data() + got, record_.size() - got,
                              static_cast<off_t>(Offset(i) + got));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      got += n;
    }
    // A sum that was never written is 0, and so is that of no record but by chance.
    if (Checksums(i)[layout_.chunks.size()] == 0) return false;
    for (size_t c = 0; c < layout_.chunks.size(); ++c) {
      if (ChunkChecksum(c) != Checksums(i)[c]) return false;
    }
    return true;
  }

  uint32_t ChunkChecksum(size_t chunk) const {
    const RecordLayout::Chunk& c = layout_.chunks[chunk];
    return Crc32c(absl::string_view(record_).substr(c.offset, c.bytes));
  }

  absl::Status PackRecord(int64_t i) {
    const int layer = static_cast<int>(i / index_.experts);
    const int expert = static_cast<int>(i % index_.experts);
    ExpertBytes parts, again;
    const absl::Status read = source_.Read(layer, expert, &parts);
    const auto where = [&] {
      return absl::StrCat("layer ", index_.layers[layer], ", expert ", expert, ": ");
    };
    if (!read.ok()) return absl::Status(read.code(), where() + std::string(read.message()));
    for (int part = 0; part < kParts; ++part) {
      if (parts[part].size() != layout_.PartBytes(part)) {
        return absl::InternalError(absl::StrCat(where(), "part ", part, " has ", parts[part].size(),
                                                " bytes, not ", layout_.PartBytes(part)));
      }
      if (IsScale(part) && !FiniteScales(parts[part], source_.shape().scale_type)) {
        return absl::DataLossError(
            absl::StrCat(where(), "a scale is not finite; the checkpoint is damaged"));
      }
    }
    layout_.Scatter(parts, absl::MakeSpan(record_));
    layout_.Gather(record_, &again);
    if (parts != again) return absl::InternalError(where() + "the record does not hold its parts");
    uint32_t* sums = Checksums(i);
    for (size_t c = 0; c < layout_.chunks.size(); ++c) sums[c] = ChunkChecksum(c);
    sums[layout_.chunks.size()] = PartsChecksum(parts);
    STOKER_RETURN_IF_ERROR(Write(Offset(i), record_));
    const auto* row = reinterpret_cast<const char*>(sums);
    const uint64_t bytes = index_.ChecksumsOfExpert(layout_) * sizeof(uint32_t);
    return Write(kSidecarHeaderBytes + index_.layers.size() * sizeof(uint32_t) + i * bytes,
                 {row, static_cast<size_t>(bytes)});
  }

  absl::Status Finish() {
    if (fsync(fd_.get()) != 0) return ErrnoStatus(errno, partial_);
    index_.complete = true;
    STOKER_RETURN_IF_ERROR(WriteIndex());
    if (fsync(fd_.get()) != 0) return ErrnoStatus(errno, partial_);
    return absl::OkStatus();
  }

  absl::Status SyncDirectory() const {
    const std::string parent = std::filesystem::absolute(out_).parent_path();
    const UniqueFd directory(open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (directory.get() < 0 || fsync(directory.get()) != 0) return ErrnoStatus(errno, parent);
    return absl::OkStatus();
  }

  ExpertSource& source_;
  const std::string out_;
  const std::string partial_;
  const PackOptions& options_;
  const RecordLayout layout_;
  SidecarIndex index_;
  bool kept_ = false;
  UniqueFd fd_;
  std::string record_;
};

}  // namespace

absl::StatusOr<PackResult> PackCheckpoint(const std::string& directory, const std::string& out,
                                          const PackOptions& options) {
  if (!absl::EndsWith(out, kSidecarSuffix)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", out, "' does not end in ", kSidecarSuffix, "; name it so"));
  }
  STOKER_ASSIGN_OR_RETURN(auto source, OpenExpertSource(directory, options.opener));
  return Packer(*source, out, options).Run();
}

}  // namespace stoker::offload
