#include "comm/socket_exchange.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "comm/protocol.h"

namespace stoker::comm {
namespace {

constexpr uint32_t kMagic = 0x53544b52;

struct Hello {
  uint32_t magic;
  uint32_t version;
  int32_t rank;
  int32_t world;
};

// A frame's head. `error` frames carry a message in place of data.
struct Frame {
  uint32_t bytes;
  uint32_t error;
};

sockaddr_un Address(const std::string& group, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // Abstract (leading zero) and hashed: a name has at most 107 bytes, whatever the group's has.
  uint64_t hash = 14695981039346656037ull;
  for (unsigned char c : group) hash = (hash ^ c) * 1099511628211ull;
  const std::string name = absl::StrCat("stoker-", geteuid(), "-", absl::Hex(hash));
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

absl::Status WaitReady(int fd, short events, absl::Time deadline) {
  for (;;) {
    const int64_t ms = absl::ToInt64Milliseconds(deadline - absl::Now()) + 1;
    if (ms <= 0) return absl::DeadlineExceededError("timed out");
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::min<int64_t>(ms, 1 << 30)));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
  }
}

absl::Status ReadAll(int fd, void* data, size_t bytes, absl::Time deadline) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    STOKER_RETURN_IF_ERROR(WaitReady(fd, POLLIN, deadline));
    const ssize_t got = recv(fd, at, bytes, MSG_DONTWAIT);
    if (got == 0) return absl::UnavailableError("the connection was closed");
    if (got < 0 && errno != EAGAIN && errno != EINTR) return ErrnoStatus(errno, "recv");
    if (got > 0) at += got, bytes -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::Status WriteAll(int fd, const void* data, size_t bytes, absl::Time deadline) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    STOKER_RETURN_IF_ERROR(WaitReady(fd, POLLOUT, deadline));
    const ssize_t put = send(fd, at, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put < 0 && errno != EAGAIN && errno != EINTR) return ErrnoStatus(errno, "send");
    if (put > 0) at += put, bytes -= static_cast<size_t>(put);
  }
  return absl::OkStatus();
}

absl::Status SendFrame(int fd, absl::string_view data, bool error, absl::Time deadline) {
  const Frame frame{static_cast<uint32_t>(data.size()), error ? 1u : 0u};
  STOKER_RETURN_IF_ERROR(WriteAll(fd, &frame, sizeof(frame), deadline));
  return WriteAll(fd, data.data(), data.size(), deadline);
}

absl::StatusOr<std::string> ReceiveFrame(int fd, int64_t bytes_max, absl::Time deadline) {
  Frame frame;
  STOKER_RETURN_IF_ERROR(ReadAll(fd, &frame, sizeof(frame), deadline));
  if (frame.bytes > bytes_max) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a message of ", frame.bytes, " bytes where at most ", bytes_max, " can come"));
  }
  std::string data(frame.bytes, '\0');
  STOKER_RETURN_IF_ERROR(ReadAll(fd, data.data(), data.size(), deadline));
  // Rank 0 says why it gave up; that is the better message.
  if (frame.error != 0) return absl::DeadlineExceededError(data);
  return data;
}

absl::Status CheckUser(int fd) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return ErrnoStatus(errno, "SO_PEERCRED");
  }
  if (peer.uid != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("process ", peer.pid, " of user ", peer.uid, " is not of user ", geteuid()));
  }
  return absl::OkStatus();
}

class SocketExchange : public RankExchange {
 public:
  SocketExchange(std::string group, int rank, int world)
      : group_(std::move(group)), rank_(rank), world_(world), peers_(world) {}

  int rank() const override { return rank_; }
  int world() const override { return world_; }

  absl::Status Listen(absl::Time deadline);
  absl::Status Connect(absl::Time deadline);

  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view what,
                                                     absl::string_view message,
                                                     absl::Duration timeout) override {
    if (static_cast<int64_t>(message.size()) > kMessageBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": a message of ", message.size(),
                                                     " bytes; at most ", kMessageBytesMax));
    }
    const absl::Time deadline = absl::Now() + timeout;
    return rank_ == 0 ? Collect(what, message, deadline, timeout)
                      : Contribute(what, message, deadline);
  }

 private:
  absl::StatusOr<std::vector<std::string>> Collect(absl::string_view what,
                                                   absl::string_view message, absl::Time deadline,
                                                   absl::Duration timeout);
  absl::StatusOr<std::vector<std::string>> Contribute(absl::string_view what,
                                                      absl::string_view message,
                                                      absl::Time deadline);
  absl::Status Missing(absl::string_view what, const std::vector<std::string>& reasons,
                       absl::Duration timeout) const {
    return absl::DeadlineExceededError(absl::StrCat(
        what, " (group ", group_, ", ", world_, " ranks): ", absl::StrJoin(reasons, "; "),
        "; waited up to ", absl::FormatDuration(timeout)));
  }

  const std::string group_;
  const int rank_;
  const int world_;
  UniqueFd listener_;
  std::vector<UniqueFd> peers_;  // of rank 0: one a rank; of the others: [0]
};

absl::Status SocketExchange::Listen(absl::Time deadline) {
  const absl::Time start = absl::Now();
  listener_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (listener_.get() < 0) return ErrnoStatus(errno, "socket");
  socklen_t length = 0;
  const sockaddr_un address = Address(group_, length);
  if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == EADDRINUSE) {
      return absl::AlreadyExistsError(absl::StrCat(
          "a group \"", group_, "\" of this user exists on this host; choose another name"));
    }
    return ErrnoStatus(errno, "bind");
  }
  if (listen(listener_.get(), kWorldMax) != 0) return ErrnoStatus(errno, "listen");
  int here = 1;
  while (here < world_) {
    if (!WaitReady(listener_.get(), POLLIN, deadline).ok()) {
      std::vector<std::string> missing;
      for (int r = 1; r < world_; ++r) {
        if (peers_[r].get() < 0) missing.push_back(absl::StrCat("rank ", r, " did not arrive"));
      }
      return Missing("connecting", missing, absl::Now() - start);
    }
    UniqueFd peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (peer.get() < 0) continue;
    Hello hello{};
    // A stranger gets a second to introduce itself, so that it cannot hold up the others for long.
    const absl::Time hello_deadline = std::min(deadline, absl::Now() + absl::Seconds(1));
    if (!CheckUser(peer.get()).ok() ||
        !ReadAll(peer.get(), &hello, sizeof(hello), hello_deadline).ok() || hello.magic != kMagic) {
      continue;
    }
    std::string refusal;
    if (hello.version != kProtocolVersion || hello.world != world_) {
      refusal =
          absl::StrCat("rank 0 has world ", world_, " and protocol ", kProtocolVersion, ", rank ",
                       hello.rank, " has world ", hello.world, " and protocol ", hello.version);
    } else if (hello.rank < 1 || hello.rank >= world_) {
      refusal = absl::StrCat("rank ", hello.rank, " is not in 1 to ", world_ - 1);
    } else if (peers_[hello.rank].get() >= 0) {
      refusal = absl::StrCat("rank ", hello.rank, " is there twice");
    }
    if (!refusal.empty()) {
      SendFrame(peer.get(), refusal, true, hello_deadline).IgnoreError();
      return absl::FailedPreconditionError(absl::StrCat("group ", group_, ": ", refusal));
    }
    peers_[hello.rank] = std::move(peer);
    ++here;
  }
  for (int r = 1; r < world_; ++r) {
    STOKER_RETURN_IF_ERROR(SendFrame(peers_[r].get(), "", false, deadline));
  }
  return absl::OkStatus();
}

absl::Status SocketExchange::Connect(absl::Time deadline) {
  const absl::Time start = absl::Now();
  socklen_t length = 0;
  const sockaddr_un address = Address(group_, length);
  for (;;) {
    peers_[0] = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (peers_[0].get() < 0) return ErrnoStatus(errno, "socket");
    if (connect(peers_[0].get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) break;
    if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
      return ErrnoStatus(errno, absl::StrCat("connecting to rank 0 of group ", group_));
    }
    if (absl::Now() > deadline) {
      return Missing("connecting", {"rank 0 did not arrive"}, absl::Now() - start);
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  STOKER_RETURN_IF_ERROR(CheckUser(peers_[0].get()));
  const Hello hello{kMagic, kProtocolVersion, rank_, world_};
  STOKER_RETURN_IF_ERROR(WriteAll(peers_[0].get(), &hello, sizeof(hello), deadline));
  const absl::Status welcome = ReceiveFrame(peers_[0].get(), kMessageBytesMax, deadline).status();
  if (welcome.ok()) return welcome;
  return absl::Status(welcome.code(),
                      absl::StrCat("group ", group_, ", rank ", rank_,
                                   " waiting for rank 0's welcome: ", welcome.message()));
}

absl::StatusOr<std::vector<std::string>> SocketExchange::Collect(absl::string_view what,
                                                                 absl::string_view message,
                                                                 absl::Time deadline,
                                                                 absl::Duration timeout) {
  std::vector<std::string> messages(world_);
  messages[0] = std::string(message);
  std::vector<std::string> missing;
  for (int r = 1; r < world_; ++r) {
    absl::StatusOr<std::string> theirs = ReceiveFrame(peers_[r].get(), kMessageBytesMax, deadline);
    if (theirs.ok()) {
      messages[r] = std::move(*theirs);
    } else {
      missing.push_back(absl::StrCat("rank ", r, ": ", theirs.status().message()));
    }
  }
  // The verdict still gets a moment when the deadline is over: the others wait for it.
  const absl::Time verdict_deadline = std::max(deadline, absl::Now() + absl::Seconds(1));
  std::string all;
  for (const std::string& m : messages) {
    const uint32_t bytes = static_cast<uint32_t>(m.size());
    all.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
    all.append(m);
  }
  const absl::Status failure = missing.empty() ? absl::OkStatus() : Missing(what, missing, timeout);
  for (int r = 1; r < world_; ++r) {
    const absl::Status sent =
        SendFrame(peers_[r].get(), failure.ok() ? absl::string_view(all) : failure.message(),
                  !failure.ok(), verdict_deadline);
    if (!sent.ok() && failure.ok()) {
      return absl::UnavailableError(absl::StrCat(what, ": rank ", r, ": ", sent.message()));
    }
  }
  if (!failure.ok()) return failure;
  return messages;
}

absl::StatusOr<std::vector<std::string>> SocketExchange::Contribute(absl::string_view what,
                                                                    absl::string_view message,
                                                                    absl::Time deadline) {
  absl::Status sent = SendFrame(peers_[0].get(), message, false, deadline);
  absl::StatusOr<std::string> all =
      sent.ok() ? ReceiveFrame(peers_[0].get(), (kMessageBytesMax + 4) * world_,
                               deadline + absl::Seconds(2))
                : absl::StatusOr<std::string>(sent);
  if (!all.ok()) {
    return absl::Status(
        all.status().code(),
        absl::StrCat(what, ", rank ", rank_, " through rank 0: ", all.status().message()));
  }
  std::vector<std::string> messages;
  absl::string_view rest = *all;
  for (int r = 0; r < world_; ++r) {
    uint32_t bytes = 0;
    if (rest.size() < sizeof(bytes)) return absl::InternalError("a gathered message is torn");
    std::memcpy(&bytes, rest.data(), sizeof(bytes));
    rest.remove_prefix(sizeof(bytes));
    if (rest.size() < bytes) return absl::InternalError("a gathered message is torn");
    messages.emplace_back(rest.substr(0, bytes));
    rest.remove_prefix(bytes);
  }
  return messages;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankExchange>> MakeSocketExchange(const std::string& group, int rank,
                                                                 int world,
                                                                 absl::Duration timeout) {
  if (world < 1 || world > kWorldMax || rank < 0 || rank >= world) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank, " of world ", world, ": worlds of 1 to ", kWorldMax, " are supported"));
  }
  auto exchange = std::make_unique<SocketExchange>(group, rank, world);
  const absl::Time deadline = absl::Now() + timeout;
  if (rank == 0) {
    STOKER_RETURN_IF_ERROR(exchange->Listen(deadline));
  } else {
    STOKER_RETURN_IF_ERROR(exchange->Connect(deadline));
  }
  return std::unique_ptr<RankExchange>(std::move(exchange));
}

}  // namespace stoker::comm
