#include "comm/rank_exchange.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace stoker::comm {

absl::Status RankExchange::AllSucceeded(absl::string_view what, const absl::Status& mine,
                                        absl::Duration timeout) {
  // No longer than people read, whatever the error quotes.
  const std::string words = mine.ok() ? "" : mine.ToString().substr(0, 1000);
  const absl::StatusOr<std::vector<std::string>> all = AllGather(what, words, timeout);
  if (!mine.ok() && !all.ok()) {
    // A peer that died may be why this rank failed.
    return absl::Status(mine.code(), absl::StrCat(mine.message(), "; ", all.status().message()));
  }
  if (!mine.ok()) return mine;
  if (!all.ok()) return all.status();
  for (int rank = 0; rank < world(); ++rank) {
    if (!(*all)[rank].empty()) {
      return absl::UnavailableError(absl::StrCat("rank ", rank, ", ", what, ": ", (*all)[rank]));
    }
  }
  return absl::OkStatus();
}

absl::Status RankExchange::CheckMessage(absl::string_view what, absl::string_view message) {
  if (static_cast<int64_t>(message.size()) <= kMessageBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": a message of ", message.size(), " bytes; at most ", kMessageBytesMax));
}

absl::Status RankExchange::Missing(absl::string_view what, const std::vector<int>& ranks, int world,
                                   absl::Duration timeout) {
  return absl::DeadlineExceededError(
      absl::StrCat(what, ranks.size() == 1 ? ": rank " : ": ranks ", absl::StrJoin(ranks, ", "),
                   " of ", world, " did not arrive within ", absl::FormatDuration(timeout)));
}

absl::Status RankExchange::InAnotherCall(int rank, absl::string_view what, int other_rank,
                                         absl::string_view other_what) {
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", rank, " is at \"", what, "\" while rank ", other_rank, " is at \"",
                   other_what, "\"; all ranks must make the same calls in the same order"));
}

absl::Status RankExchange::Over(absl::string_view what, const absl::Status& first_error) {
  return absl::FailedPreconditionError(
      absl::StrCat(what, ": the exchange ended earlier: ", first_error.message()));
}

}  // namespace stoker::comm
