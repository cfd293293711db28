// A store that gives a fixed number of bytes a second to all its readers together, whatever lies in
// the page cache: what a disk of that rate would do to the engine.
//
//   ThrottledFiles store(1e9);
//   Checkpoint::Open(directory, store.Opener());   // outlived by `store`
#pragma once

#include <sys/prctl.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/status.h"
#include "offload/io/file.h"

namespace stoker::tools {

class ThrottledFiles {
 public:
  explicit ThrottledFiles(double bytes_per_second) : rate_(bytes_per_second) {}

  offload::FileOpener Opener() {
    return [this](const std::string& path) -> absl::StatusOr<std::unique_ptr<offload::File>> {
      STOKER_ASSIGN_OR_RETURN(auto file, offload::OpenPosixFile(path));
      return std::unique_ptr<offload::File>(new ThrottledFile(std::move(file), this));
    };
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Takes `bytes` of the rate and waits until they would have arrived.
  void Take(size_t bytes) {
    Clock::time_point until;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      free_at_ = std::max(free_at_, Clock::now()) +
                 std::chrono::duration_cast<Clock::duration>(
                     std::chrono::duration<double>(static_cast<double>(bytes) / rate_));
      until = free_at_;
    }
    // A sleep may end 50 us late by default, half the time of a chunk of scales: no disk does that.
    thread_local const int exact = prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    static_cast<void>(exact);
    std::this_thread::sleep_until(until);
  }

  class ThrottledFile : public offload::File {
   public:
    ThrottledFile(std::unique_ptr<offload::File> file, ThrottledFiles* store)
        : file_(std::move(file)), store_(store) {}
    const std::string& path() const override { return file_->path(); }
    absl::StatusOr<offload::FileIdentity> Identity() const override { return file_->Identity(); }
    absl::StatusOr<offload::FileIdentity> IdentityOfPath() const override {
      return file_->IdentityOfPath();
    }
    absl::StatusOr<size_t> ReadAt(uint64_t offset, absl::Span<char> into) const override {
      auto got = file_->ReadAt(offset, into);
      if (got.ok()) store_->Take(*got);
      return got;
    }

   private:
    const std::unique_ptr<offload::File> file_;
    ThrottledFiles* const store_;
  };

  const double rate_;
  std::mutex mutex_;
  Clock::time_point free_at_;
};

}  // namespace stoker::tools
