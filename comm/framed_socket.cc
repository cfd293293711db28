#include "comm/framed_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace stoker::comm {
namespace {

constexpr uint32_t kMagic = 0x324B5453;  // "STK2"

struct Head {
  uint32_t magic;
  uint32_t code;  // of absl::StatusCode; 0: data
  uint32_t what_bytes;
  uint32_t message_bytes;
};

constexpr uint32_t kCodeMax = static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);

absl::Status CheckHead(const Head& head, int64_t bytes_max) {
  if (head.magic != kMagic || head.code > kCodeMax ||
      head.what_bytes > FramedSocket::kWhatBytesMax) {
    return absl::InvalidArgumentError("the peer does not speak this protocol");
  }
  if (head.message_bytes > bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a message of ", head.message_bytes, " bytes where at most ", bytes_max, " can come"));
  }
  return absl::OkStatus();
}

}  // namespace

int PollMilliseconds(const Deadline& deadline) {
  constexpr absl::Duration kAtOnceMax = absl::Hours(1);  // a wait looks at its deadline again
  const int64_t us = absl::ToInt64Microseconds(std::min(deadline.Left(), kAtOnceMax));
  return static_cast<int>((us + 999) / 1000);
}

absl::Status WaitReady(int fd, short events, const Deadline& deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, PollMilliseconds(deadline));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
    if (deadline.Passed()) return absl::DeadlineExceededError("timed out");
  }
}

absl::Status FramedSocket::CheckUser() const {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return ErrnoStatus(errno, "SO_PEERCRED");
  }
  if (peer.uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("process ", peer.pid, " of user ", peer.uid, " is not of user ", geteuid()));
}

absl::Status FramedSocket::SendData(absl::string_view what, absl::string_view message,
                                    const Deadline& deadline) {
  return SendFrame(0, what, message, deadline);
}

absl::Status FramedSocket::SendVerdict(absl::string_view what, const absl::Status& verdict,
                                       const Deadline& deadline) {
  return SendFrame(static_cast<uint32_t>(verdict.code()), what,
                   verdict.message().substr(0, kVerdictBytesMax), deadline);
}

absl::Status FramedSocket::SendFrame(uint32_t code, absl::string_view what,
                                     absl::string_view message, const Deadline& deadline) {
  what = what.substr(0, kWhatBytesMax);
  const Head head{kMagic, code, static_cast<uint32_t>(what.size()),
                  static_cast<uint32_t>(message.size())};
  const absl::string_view bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  return WriteAll(absl::StrCat(bytes, what, message), deadline);
}

absl::Status FramedSocket::WriteAll(absl::string_view data, const Deadline& deadline) {
  while (!data.empty()) {
    STOKER_RETURN_IF_ERROR(WaitReady(fd_.get(), POLLOUT, deadline));
    const ssize_t put = send(fd_.get(), data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put >= 0) {
      data.remove_prefix(static_cast<size_t>(put));
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return absl::UnavailableError("the connection was closed");
    } else if (errno != EAGAIN && errno != EINTR) {
      return ErrnoStatus(errno, "send");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Frame>> FramedSocket::TryReceive(int64_t bytes_max) {
  size_t wanted = sizeof(Head);
  Head head{};
  for (;;) {
    if (received_.size() >= sizeof(head)) {
      std::memcpy(&head, received_.data(), sizeof(head));
      STOKER_RETURN_IF_ERROR(CheckHead(head, bytes_max));
      wanted = sizeof(head) + head.what_bytes + head.message_bytes;
    }
    if (received_.size() == wanted) break;
    // Exactly what is missing of this frame: the next one stays in the socket.
    char buffer[1 << 14];
    const ssize_t got =
        recv(fd_.get(), buffer, std::min(sizeof(buffer), wanted - received_.size()), MSG_DONTWAIT);
    if (got > 0) {
      received_.append(buffer, static_cast<size_t>(got));
    } else if (got == 0 || errno == ECONNRESET) {
      return absl::UnavailableError("the connection was closed");
    } else if (errno == EAGAIN) {
      return std::optional<Frame>();
    } else if (errno != EINTR) {
      return ErrnoStatus(errno, "recv");
    }
  }
  Frame frame;
  frame.what = received_.substr(sizeof(head), head.what_bytes);
  frame.message = received_.substr(sizeof(head) + head.what_bytes);
  if (head.code != 0) {
    frame.verdict = absl::Status(static_cast<absl::StatusCode>(head.code), frame.message);
  }
  received_.clear();
  return std::optional<Frame>(std::move(frame));
}

absl::StatusOr<Frame> FramedSocket::Receive(int64_t bytes_max, const Deadline& deadline) {
  for (;;) {
    STOKER_ASSIGN_OR_RETURN(std::optional<Frame> frame, TryReceive(bytes_max));
    if (frame.has_value()) return *std::move(frame);
    STOKER_RETURN_IF_ERROR(WaitReady(fd_.get(), POLLIN, deadline));
  }
}

}  // namespace stoker::comm
