#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "offload/io/direct_range.h"
#include "offload/io/read_lane.h"

namespace stoker::offload {
namespace {

constexpr uint64_t kWakeTag = UINT64_MAX;

class UringLane final : public ReadLane {
 public:
  static absl::StatusOr<std::unique_ptr<ReadLane>> Make(int depth) {
    auto lane = std::unique_ptr<UringLane>(new UringLane(depth));
    // One more for the wake-up; the completion queue has twice as many, so it cannot overflow.
    const int error = io_uring_queue_init(depth + 1, &lane->ring_, 0);
    if (error < 0) return Unavailable("io_uring_setup", -error);
    lane->ready_ = true;
    lane->event_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
    if (lane->event_.get() < 0) return Unavailable("eventfd", errno);
    // What a sandbox allows to set up it may still refuse to run.
    lane->ArmWake();
    lane->Wake();
    std::vector<ReadOutcome> none;
    io_uring_submit(&lane->ring_);
    io_uring_cqe* cqe = nullptr;
    __kernel_timespec second{1, 0};
    const int waited = io_uring_wait_cqe_timeout(&lane->ring_, &cqe, &second);
    if (waited < 0) return Unavailable("io_uring_enter", -waited);
    const int result = cqe->res;
    io_uring_cqe_seen(&lane->ring_, cqe);
    if (result != static_cast<int>(sizeof(uint64_t))) {
      return Unavailable("a read by io_uring", result < 0 ? -result : EIO);
    }
    lane->ArmWake();
    return std::unique_ptr<ReadLane>(std::move(lane));
  }

  ~UringLane() override {
    // The owner has waited for its reads. The one on the event ends here, before its buffer does.
    if (!ready_) return;
    if (armed_) {
      Wake();
      io_uring_submit(&ring_);
      io_uring_cqe* cqe = nullptr;
      while (io_uring_wait_cqe(&ring_, &cqe) == -EINTR) {
      }
    }
    io_uring_queue_exit(&ring_);
  }

  int capacity() const override { return static_cast<int>(reads_.size()); }

  void Start(const ReadRequest& request) override {
    const size_t slot = free_.back();
    free_.pop_back();
    Pending& pending = reads_[slot];
    pending.request = request;
    pending.request.direct = request.direct && request.file->direct_fd() >= 0;
    pending.range = DirectRange(pending.request);
    pending.got = 0;
    Submit(slot);
  }

  void Wait(std::vector<ReadOutcome>* done) override {
    while (io_uring_submit_and_wait(&ring_, 1) == -EINTR) {
    }
    io_uring_cqe* cqe;
    while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
      const uint64_t tag = cqe->user_data;
      const int result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      if (tag == kWakeTag) {
        armed_ = false;
        ArmWake();
      } else {
        Completed(static_cast<size_t>(tag), result, done);
      }
    }
  }

  void Wake() override {
    const uint64_t one = 1;
    while (write(event_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }

 private:
  struct Pending {
    ReadRequest request;
    DirectRange range{request};
    uint64_t got = 0;  // of a buffered read
  };

  explicit UringLane(int depth) : reads_(depth) {
    for (size_t i = 0; i < reads_.size(); ++i) free_.push_back(i);
  }

  static absl::Status Unavailable(const char* what, int error) {
    return absl::UnavailableError(ErrnoStatus(error, what).message());
  }

  void ArmWake() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    io_uring_prep_read(sqe, event_.get(), &event_value_, sizeof(event_value_), 0);
    sqe->user_data = kWakeTag;
    armed_ = true;
  }

  // There is an entry for every read and the wake-up, so none is ever missing.
  void Submit(size_t slot) {
    const Pending& p = reads_[slot];
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) {
      io_uring_submit(&ring_);
      sqe = io_uring_get_sqe(&ring_);
    }
    if (p.request.direct) {
      io_uring_prep_read(sqe, p.request.file->direct_fd(), p.range.data(),
                         static_cast<unsigned>(p.range.size()), p.range.file_offset());
    } else {
      const size_t left = std::min<size_t>(p.request.into.size() - p.got, 1u << 30);
      io_uring_prep_read(sqe, p.request.file->fd(), p.request.into.data() + p.got,
                         static_cast<unsigned>(left), p.request.offset + p.got);
    }
    sqe->user_data = slot;
  }

  void Completed(size_t slot, int result, std::vector<ReadOutcome>* done) {
    Pending& p = reads_[slot];
    if (result == -EINTR || result == -EAGAIN) return Submit(slot);
    absl::Status status;
    if (result < 0) {
      const uint64_t at = p.request.direct ? p.range.file_offset() : p.request.offset + p.got;
      status = ErrnoStatus(-result, absl::StrCat(p.request.file->path(), ": read at offset ", at));
    } else if (p.request.direct) {
      if (!p.range.Advance(result)) {
        status = p.range.EndOfFile();
      } else if (!p.range.covered()) {
        return Submit(slot);
      }
    } else {
      p.got += result;
      if (p.got < p.request.into.size()) {
        if (result > 0) return Submit(slot);
        status = absl::DataLossError(absl::StrCat(
            p.request.file->path(), ": the file ends at offset ", p.request.offset + p.got, ", ",
            p.request.into.size() - p.got, " bytes short"));
      }
    }
    done->push_back({p.request.tag, std::move(status)});
    free_.push_back(slot);
  }

  io_uring ring_ = {};
  bool ready_ = false;
  bool armed_ = false;
  UniqueFd event_;
  uint64_t event_value_ = 0;
  std::vector<Pending> reads_;  // never grows: the ring refers to it
  std::vector<size_t> free_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ReadLane>> MakeUringLane(int depth) {
  if (depth < 1 || depth > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("a queue depth of ", depth, " is not in [1, 1024]"));
  }
  return UringLane::Make(depth);
}

}  // namespace stoker::offload
