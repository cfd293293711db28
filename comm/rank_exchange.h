// How the ranks of a group talk before they share memory: small messages, collective, bounded.
//
// Implementations: SocketExchange (comm/socket_exchange.h) for processes of one host,
// ThreadExchange (comm/thread_exchange.h) for ranks that are threads of one process, and the op
// layer's over a torch process group.
//
// Every rank calls the same methods in the same order. One thread at a time per object. After an
// error other than kInvalidArgument the ranks may disagree about which call they are in, so
// SocketExchange and ThreadExchange are over: each later call returns kFailedPrecondition with the
// first error, at once, and the group needs a new exchange.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace stoker::comm {

class RankExchange {
 public:
  // A message may have this many bytes.
  static constexpr int64_t kMessageBytesMax = 1 << 16;

  virtual ~RankExchange() = default;
  virtual int rank() const = 0;
  virtual int world() const = 0;

  // Every rank's message, by rank. kDeadlineExceeded names `what` and the ranks that did not
  // arrive, kUnavailable a rank whose connection broke, kFailedPrecondition a rank that is in
  // another call (another `what`).
  virtual absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view what,
                                                             absl::string_view message,
                                                             absl::Duration timeout) = 0;

  // Returns once every rank has called it.
  absl::Status Barrier(absl::string_view what, absl::Duration timeout) {
    return AllGather(what, "", timeout).status();
  }

  // Tells the others how this rank fared. An error if any rank failed: this rank's own, else
  // kUnavailable with the words of the lowest one that did, so that all learn it now and not by a
  // deadline.
  absl::Status AllSucceeded(absl::string_view what, const absl::Status& mine,
                            absl::Duration timeout);

 protected:
  // The errors that implementations share, so that a user reads the same words in every world.
  static absl::Status CheckMessage(absl::string_view what, absl::string_view message);
  // "<what>: ranks 2, 3 of 4 did not arrive within 5s"
  static absl::Status Missing(absl::string_view what, const std::vector<int>& ranks, int world,
                              absl::Duration timeout);
  static absl::Status InAnotherCall(int rank, absl::string_view what, int other_rank,
                                    absl::string_view other_what);
  static absl::Status Over(absl::string_view what, const absl::Status& first_error);
};

}  // namespace stoker::comm
