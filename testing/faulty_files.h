// An opener whose files fail as told: short reads, errors, flipped bits, latency.
//
//   FaultyFiles faults;
//   Checkpoint::Open(directory, faults.Opener());
//   faults.fail_after = 10;   // reads from now on: the eleventh fails
//
// Outlives what it opened. The knobs may be turned while files are read.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "base/status.h"
#include "offload/io/file.h"

namespace stoker::testing {

class FaultyFiles {
 public:
  std::atomic<int64_t> fail_after{-1};  // reads until one fails with EIO; -1: never
  std::atomic<bool> every_read_fails{false};
  std::atomic<bool> short_reads{false};  // at most 1000 bytes a read
  std::atomic<bool> ends_early{false};   // reads return 0 as at the end of the file
  std::atomic<bool> not_finite{false};   // what is read has all bits set
  std::atomic<bool> replaced{false};     // the name belongs to another file
  std::atomic<int> flip_every{0};        // one bit of every so manyth read is wrong; 0: none
  std::atomic<int> latency_us{0};
  std::atomic<bool> hold{false};  // reads wait until it is false, at most 60 s
  std::atomic<int> reading{0};    // reads that run

  offload::FileOpener Opener() {
    return [this](const std::string& path) -> absl::StatusOr<std::unique_ptr<offload::File>> {
      STOKER_ASSIGN_OR_RETURN(auto file, offload::OpenPosixFile(path));
      return std::unique_ptr<offload::File>(new FaultyFile(std::move(file), this));
    };
  }

 private:
  class FaultyFile : public offload::File {
   public:
    FaultyFile(std::unique_ptr<offload::File> file, FaultyFiles* faults)
        : file_(std::move(file)), faults_(faults) {}
    const std::string& path() const override { return file_->path(); }
    absl::StatusOr<offload::FileIdentity> Identity() const override { return file_->Identity(); }
    absl::StatusOr<offload::FileIdentity> IdentityOfPath() const override {
      auto identity = file_->IdentityOfPath();
      if (identity.ok() && faults_->replaced) ++identity->inode;
      return identity;
    }
    absl::StatusOr<size_t> ReadAt(uint64_t offset, absl::Span<char> into) const override {
      ++faults_->reading;
      std::this_thread::sleep_for(std::chrono::microseconds(faults_->latency_us));
      for (int ms = 0; faults_->hold && ms < 60000; ++ms) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      --faults_->reading;
      const bool counted = faults_->fail_after >= 0 && faults_->fail_after-- == 0;
      if (faults_->every_read_fails || counted) return ErrnoStatus(EIO, path());
      if (faults_->ends_early) return size_t{0};
      if (faults_->short_reads && into.size() > 1000) into = into.first(1000);
      auto got = file_->ReadAt(offset, into);
      if (faults_->not_finite) std::fill(into.begin(), into.end(), '\xff');
      const int every = faults_->flip_every;
      if (every > 0 && got.ok() && *got > 0) {
        const uint64_t read = ++faults_->reads_;
        // Anywhere in what was read: a product of odd numbers visits all places.
        if (read % every == 0) into[read * 0x9E3779B97F4A7C15u % *got] ^= 1 << read % 8;
      }
      return got;
    }

   private:
    const std::unique_ptr<offload::File> file_;
    FaultyFiles* const faults_;
  };

  std::atomic<uint64_t> reads_{0};
};

}  // namespace stoker::testing
