// One connection of a SocketExchange: frames over a stream socket, every wait bounded, nothing that
// the peer sends trusted.
//
// Owns the descriptor. One thread at a time. Errors: kUnavailable when the peer closed or broke the
// connection, kDeadlineExceeded, kInvalidArgument for bytes that are no frame of ours. After any
// error of Send or Receive the stream may stand in the middle of a frame: close it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/unique_fd.h"

namespace stoker::comm {

struct Frame {
  absl::Status verdict;  // OK: `message` is data; otherwise why the sender gave up
  std::string what;      // the call that the sender is in
  std::string message;
};

class FramedSocket {
 public:
  // Longer names of calls, and longer reasons, are cut.
  static constexpr size_t kWhatBytesMax = 100;
  static constexpr size_t kVerdictBytesMax = 4096;

  FramedSocket() = default;
  explicit FramedSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  bool open() const { return fd_.get() >= 0; }
  int fd() const { return fd_.get(); }
  void Close() { *this = FramedSocket(); }

  // OK if the process at the other end is of this user.
  absl::Status CheckUser() const;

  absl::Status SendData(absl::string_view what, absl::string_view message,
                        const Deadline& deadline);
  absl::Status SendVerdict(absl::string_view what, const absl::Status& verdict,
                           const Deadline& deadline);

  // A frame if all of it has come; never blocks. `bytes_max` bounds its message.
  absl::StatusOr<std::optional<Frame>> TryReceive(int64_t bytes_max);
  absl::StatusOr<Frame> Receive(int64_t bytes_max, const Deadline& deadline);

 private:
  absl::Status SendFrame(uint32_t code, absl::string_view what, absl::string_view message,
                         const Deadline& deadline);
  absl::Status WriteAll(absl::string_view data, const Deadline& deadline);

  UniqueFd fd_;
  std::string received_;  // the beginning of a frame
};

// Waits until poll() reports `events` on the descriptor.
absl::Status WaitReady(int fd, short events, const Deadline& deadline);
// Of poll(): the time left, rounded up, so that a wait does not end before its deadline.
int PollMilliseconds(const Deadline& deadline);

}  // namespace stoker::comm
