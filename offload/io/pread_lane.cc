#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "offload/io/direct_range.h"
#include "offload/io/read_lane.h"

namespace stoker::offload {
namespace {

absl::Status ReadDirect(const ReadRequest& request) {
  DirectRange range(request);
  while (!range.covered()) {
    const ssize_t got =
        pread(request.file->direct_fd(), range.data(), range.size(), range.file_offset());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return ErrnoStatus(errno, absl::StrCat(request.file->path(), ": direct read at offset ",
                                             range.file_offset()));
    }
    if (!range.Advance(got)) return range.EndOfFile();
  }
  return absl::OkStatus();
}

class PreadLane : public ReadLane {
 public:
  int capacity() const override { return 1; }

  void Start(const ReadRequest& request) override {
    absl::Status status = request.direct && request.file->direct_fd() >= 0
                              ? ReadDirect(request)
                              : ReadFully(*request.file, request.offset, request.into);
    done_.push_back({request.tag, std::move(status)});
  }

  void Wait(std::vector<ReadOutcome>* done) override {
    if (done_.empty()) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [this] { return woken_; });
      woken_ = false;
      return;
    }
    std::move(done_.begin(), done_.end(), std::back_inserter(*done));
    done_.clear();
  }

  void Wake() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      woken_ = true;
    }
    wake_.notify_one();
  }

 private:
  std::vector<ReadOutcome> done_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool woken_ = false;
};

}  // namespace

std::unique_ptr<ReadLane> MakePreadLane() { return std::make_unique<PreadLane>(); }

}  // namespace stoker::offload
