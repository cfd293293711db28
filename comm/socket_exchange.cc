#include "comm/socket_exchange.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bounded_wait.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "comm/framed_socket.h"
#include "comm/protocol.h"

namespace stoker::comm {
namespace {

constexpr size_t kGroupBytesMax = 200;
constexpr absl::string_view kConnecting = "connecting";
// How long the others wait for rank 0's verdict after the deadline, and rank 0 to deliver it.
constexpr absl::Duration kVerdictWait = absl::Seconds(2);
constexpr absl::Duration kVerdictSend = absl::Seconds(1);

// The first message of a rank; the name of its group follows. The order of these fields is the same
// in every version, so that another one is recognised.
struct Hello {
  uint32_t version;
  int32_t rank;
  int32_t world;
};

std::string SocketName(const std::string& group) {
  // Hashed (FNV-1a): the name of a socket has at most 107 bytes, that of a group may have more.
  uint64_t hash = 14695981039346656037ull;
  for (unsigned char c : group) hash = (hash ^ c) * 1099511628211ull;
  return absl::StrCat("stoker-", geteuid(), "-", absl::Hex(hash));
}

sockaddr_un Address(const std::string& group, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = SocketName(group);
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // a leading zero: abstract
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// Whether some process holds the name; for a message only, it may change at any time.
bool NameIsTaken(const std::string& group) {
  const std::string wanted = "@" + SocketName(group);
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    if (line.size() >= wanted.size() &&
        line.compare(line.size() - wanted.size(), wanted.size(), wanted) == 0) {
      return true;
    }
  }
  return false;
}

class SocketExchange : public RankExchange {
 public:
  SocketExchange(std::string group, int rank, int world)
      : group_(std::move(group)), rank_(rank), world_(world), peers_(world) {}

  int rank() const override { return rank_; }
  int world() const override { return world_; }

  absl::Status Listen(const Deadline& deadline);
  absl::Status Connect(const Deadline& deadline);

  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view what,
                                                     absl::string_view message,
                                                     absl::Duration timeout) override;

 private:
  absl::Status Bind();
  void RefuseFurther();
  absl::Status AcceptAll(const Deadline& deadline);
  absl::Status Admit(FramedSocket peer, absl::string_view hello_message);
  void SendVerdictToAll(absl::string_view what, const absl::Status& verdict,
                        const Deadline& deadline);
  absl::StatusOr<std::vector<std::string>> Collect(absl::string_view what,
                                                   absl::string_view message,
                                                   const Deadline& deadline);
  absl::Status CollectFrames(absl::string_view what, const Deadline& deadline,
                             std::vector<std::string>& messages);
  absl::StatusOr<std::vector<std::string>> Contribute(absl::string_view what,
                                                      absl::string_view message,
                                                      const Deadline& deadline);
  absl::StatusOr<std::string> AwaitVerdict(absl::string_view what, const absl::Status& sent,
                                           int64_t bytes_max, const Deadline& deadline);
  std::string Named(absl::string_view what) const {
    return absl::StrCat(what, " (group ", group_, ")");
  }

  const std::string group_;
  const int rank_;
  const int world_;
  UniqueFd listener_;                // of rank 0; holds the name
  std::vector<FramedSocket> peers_;  // of rank 0: one a rank; of the others: [0]
  absl::Status over_;                // the first error
};

absl::Status SocketExchange::Bind() {
  listener_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
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
  return absl::OkStatus();
}

absl::Status SocketExchange::Listen(const Deadline& deadline) {
  STOKER_RETURN_IF_ERROR(Bind());
  const absl::Status complete = AcceptAll(deadline);
  if (!complete.ok()) {
    SendVerdictToAll(kConnecting, complete, deadline);
    return complete;
  }
  RefuseFurther();
  for (int r = 1; r < world_; ++r) {
    const absl::Status sent = peers_[r].SendData(kConnecting, "", deadline);
    if (!sent.ok()) {
      return absl::Status(sent.code(), absl::StrCat(Named(kConnecting), ": rank ", r, " of ",
                                                    world_, ": ", sent.message()));
    }
  }
  return absl::OkStatus();
}

void SocketExchange::RefuseFurther() {
  // The socket keeps the name, and nobody can connect to it any more ...
  shutdown(listener_.get(), SHUT_RDWR);
  const absl::Status verdict = absl::AlreadyExistsError(
      absl::StrCat(Named(kConnecting), ": a group of this name exists and takes no more ranks"));
  // ... and those who were in the backlog already need not wait for their deadline.
  for (;;) {
    FramedSocket peer(UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
    if (!peer.open()) return;
    peer.SendVerdict(kConnecting, verdict, Deadline(Clock::Monotonic(), absl::ZeroDuration()))
        .IgnoreError();
  }
}

absl::Status SocketExchange::AcceptAll(const Deadline& deadline) {
  for (;;) {
    std::vector<int> missing;
    for (int r = 1; r < world_; ++r) {
      if (!peers_[r].open()) missing.push_back(r);
    }
    if (missing.empty()) return absl::OkStatus();
    if (!WaitReady(listener_.get(), POLLIN, deadline).ok()) {
      return Missing(Named(kConnecting), missing, world_, deadline.timeout());
    }
    FramedSocket peer(UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
    if (!peer.open() || !peer.CheckUser().ok()) continue;
    // A stranger gets a second to introduce itself, so that it cannot hold up the others for long.
    const absl::StatusOr<Frame> hello =
        peer.Receive(sizeof(Hello) + kGroupBytesMax, deadline.SoonerOf(absl::Seconds(1)));
    if (!hello.ok() || hello->message.size() < sizeof(Hello)) continue;
    STOKER_RETURN_IF_ERROR(Admit(std::move(peer), hello->message));
  }
}

absl::Status SocketExchange::Admit(FramedSocket peer, absl::string_view hello_message) {
  Hello hello{};
  std::memcpy(&hello, hello_message.data(), sizeof(hello));
  const absl::string_view group = hello_message.substr(sizeof(hello));
  std::string refusal;
  if (hello.version != kProtocolVersion || hello.world != world_) {
    refusal =
        absl::StrCat("rank 0 has world ", world_, " and protocol ", kProtocolVersion, ", rank ",
                     hello.rank, " has world ", hello.world, " and protocol ", hello.version);
  } else if (group != group_) {
    refusal = absl::StrCat("rank ", hello.rank, " is of group ", group);
  } else if (hello.rank < 1 || hello.rank >= world_) {
    refusal = absl::StrCat("rank ", hello.rank, " is not in 1 to ", world_ - 1);
  } else if (peers_[hello.rank].open()) {
    refusal = absl::StrCat("rank ", hello.rank, " is there twice");
  } else {
    peers_[hello.rank] = std::move(peer);
    return absl::OkStatus();
  }
  const absl::Status verdict =
      absl::FailedPreconditionError(absl::StrCat(Named(kConnecting), ": ", refusal));
  peer.SendVerdict(kConnecting, verdict, Deadline(Clock::Monotonic(), kVerdictSend)).IgnoreError();
  return verdict;
}

void SocketExchange::SendVerdictToAll(absl::string_view what, const absl::Status& verdict,
                                      const Deadline& deadline) {
  // The verdict still gets a moment when the deadline is over: the others wait for it.
  const Deadline last(deadline.clock(), kVerdictSend);
  for (FramedSocket& peer : peers_) {
    // One that cannot be told learns it from the closed connection.
    if (peer.open()) peer.SendVerdict(what, verdict, last).IgnoreError();
  }
}

absl::Status SocketExchange::Connect(const Deadline& deadline) {
  socklen_t length = 0;
  const sockaddr_un address = Address(group_, length);
  int error = 0;
  // Not blocking: a full backlog must not hold a rank past its deadline.
  const auto connected = [&] {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    error = 0;
    if (fd.get() < 0 ||
        connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
      error = errno;
      return error != ECONNREFUSED && error != EAGAIN && error != EINTR;
    }
    peers_[0] = FramedSocket(std::move(fd));
    return true;
  };
  if (!WaitUntil(connected, deadline, kConnecting).ok()) {
    const absl::Status missing = Missing(Named(kConnecting), {0}, world_, deadline.timeout());
    return NameIsTaken(group_)
               ? absl::Status(missing.code(), absl::StrCat(missing.message(),
                                                           "; a group of this name exists and "
                                                           "takes no more ranks"))
               : missing;
  }
  if (error != 0) return ErrnoStatus(error, absl::StrCat(Named(kConnecting), ": rank 0"));
  STOKER_RETURN_IF_ERROR(peers_[0].CheckUser());
  const Hello hello{kProtocolVersion, rank_, world_};
  const absl::string_view bytes(reinterpret_cast<const char*>(&hello), sizeof(hello));
  const absl::Status sent = peers_[0].SendData(kConnecting, absl::StrCat(bytes, group_), deadline);
  return AwaitVerdict(kConnecting, sent, 0, deadline).status();
}

absl::StatusOr<std::vector<std::string>> SocketExchange::AllGather(absl::string_view what,
                                                                   absl::string_view message,
                                                                   absl::Duration timeout) {
  STOKER_RETURN_IF_ERROR(CheckMessage(what, message));
  if (!over_.ok()) return Over(Named(what), over_);
  const Deadline deadline(Clock::Monotonic(), timeout);
  absl::StatusOr<std::vector<std::string>> messages =
      rank_ == 0 ? Collect(what, message, deadline) : Contribute(what, message, deadline);
  if (!messages.ok()) {
    over_ = messages.status();
    // Tells the others at once; a message that comes late must not be taken for one of a later
    // call.
    for (FramedSocket& peer : peers_) peer.Close();
  }
  return messages;
}

absl::StatusOr<std::vector<std::string>> SocketExchange::Collect(absl::string_view what,
                                                                 absl::string_view message,
                                                                 const Deadline& deadline) {
  std::vector<std::string> messages(world_);
  messages[0] = std::string(message);
  const absl::Status collected = CollectFrames(what, deadline, messages);
  if (!collected.ok()) {
    SendVerdictToAll(what, collected, deadline);
    return collected;
  }
  std::string all;
  for (const std::string& m : messages) {
    const uint32_t bytes = static_cast<uint32_t>(m.size());
    all.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
    all.append(m);
  }
  const Deadline last(deadline.clock(), std::max(deadline.Left(), kVerdictSend));
  for (int r = 1; r < world_; ++r) {
    const absl::Status sent = peers_[r].SendData(what, all, last);
    if (!sent.ok()) {
      return absl::Status(sent.code(), absl::StrCat(Named(what), ": rank ", r, " of ", world_, ": ",
                                                    sent.message()));
    }
  }
  return messages;
}

absl::Status SocketExchange::CollectFrames(absl::string_view what, const Deadline& deadline,
                                           std::vector<std::string>& messages) {
  std::vector<int> missing;
  for (int r = 1; r < world_; ++r) missing.push_back(r);
  while (!missing.empty()) {
    std::vector<pollfd> entries;
    for (int r : missing) entries.push_back({peers_[r].fd(), POLLIN, 0});
    const int ready = poll(entries.data(), entries.size(), PollMilliseconds(deadline));
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
    if (ready <= 0) {
      if (deadline.Passed()) return Missing(Named(what), missing, world_, deadline.timeout());
      continue;
    }
    std::vector<int> still_missing;
    for (int r : missing) {
      absl::StatusOr<std::optional<Frame>> frame = peers_[r].TryReceive(kMessageBytesMax);
      if (!frame.ok()) {
        return absl::Status(frame.status().code(),
                            absl::StrCat(Named(what), ": rank ", r, " of ", world_, ": ",
                                         frame.status().message()));
      }
      if (!frame->has_value()) {
        still_missing.push_back(r);
      } else if ((*frame)->what != what.substr(0, FramedSocket::kWhatBytesMax)) {
        return InAnotherCall(r, (*frame)->what, 0, what);
      } else {
        messages[r] = std::move((*frame)->message);
      }
    }
    missing = std::move(still_missing);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> SocketExchange::Contribute(absl::string_view what,
                                                                    absl::string_view message,
                                                                    const Deadline& deadline) {
  const absl::Status sent = peers_[0].SendData(what, message, deadline);
  STOKER_ASSIGN_OR_RETURN(
      const std::string all,
      AwaitVerdict(what, sent, (kMessageBytesMax + sizeof(uint32_t)) * world_, deadline));
  std::vector<std::string> messages;
  absl::string_view rest = all;
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

absl::StatusOr<std::string> SocketExchange::AwaitVerdict(absl::string_view what,
                                                         const absl::Status& sent,
                                                         int64_t bytes_max,
                                                         const Deadline& deadline) {
  // Also if sending failed: rank 0 may have said why before it closed the connection.
  const Deadline last(deadline.clock(),
                      sent.ok() ? deadline.Left() + kVerdictWait : absl::ZeroDuration());
  absl::StatusOr<Frame> frame =
      peers_[0].Receive(std::max<int64_t>(bytes_max, FramedSocket::kVerdictBytesMax), last);
  if (frame.ok() && !frame->verdict.ok()) return frame->verdict;
  if (frame.ok() && sent.ok()) return std::move(frame->message);
  const absl::Status& reason = sent.ok() ? frame.status() : sent;
  if (absl::IsDeadlineExceeded(reason)) {
    return Missing(Named(what), {0}, world_, deadline.timeout());
  }
  return absl::Status(reason.code(),
                      absl::StrCat(Named(what), ": rank 0 of ", world_, ": ", reason.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankExchange>> MakeSocketExchange(const std::string& group, int rank,
                                                                 int world,
                                                                 absl::Duration timeout) {
  if (world < 1 || world > kWorldMax || rank < 0 || rank >= world) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank, " of world ", world, ": worlds of 1 to ", kWorldMax, " are supported"));
  }
  if (group.empty() || group.size() > kGroupBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a group name of ", group.size(), " bytes; 1 to ", kGroupBytesMax, " are allowed"));
  }
  auto exchange = std::make_unique<SocketExchange>(group, rank, world);
  const Deadline deadline(Clock::Monotonic(), timeout);
  STOKER_RETURN_IF_ERROR(rank == 0 ? exchange->Listen(deadline) : exchange->Connect(deadline));
  return std::unique_ptr<RankExchange>(std::move(exchange));
}

}  // namespace stoker::comm
