#include "comm/thread_exchange.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"

namespace stoker::comm {
namespace {

// One gathering at a time. A rank may enter the next one while others still read the last, so
// results are kept by round.
struct Meeting {
  explicit Meeting(int world) : world(world) {}
  const int world;
  absl::Mutex mutex;
  struct Round {
    std::vector<std::string> messages;
    std::vector<bool> here;
    int arrived = 0;
    int left = 0;
  };
  std::vector<std::pair<int64_t, Round>> rounds;

  Round& Find(int64_t number) {
    for (auto& [n, round] : rounds) {
      if (n == number) return round;
    }
    rounds.emplace_back(number, Round{});
    rounds.back().second.messages.resize(world);
    rounds.back().second.here.resize(world);
    return rounds.back().second;
  }
  void Drop(int64_t number) {
    std::erase_if(rounds, [number](const auto& r) { return r.first == number; });
  }
};

class ThreadExchange : public RankExchange {
 public:
  ThreadExchange(std::shared_ptr<Meeting> meeting, int rank)
      : meeting_(std::move(meeting)), rank_(rank) {}

  int rank() const override { return rank_; }
  int world() const override { return meeting_->world; }

  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view what,
                                                     absl::string_view message,
                                                     absl::Duration timeout) override {
    if (static_cast<int64_t>(message.size()) > kMessageBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": a message of ", message.size(),
                                                     " bytes; at most ", kMessageBytesMax));
    }
    const int64_t number = round_++;
    absl::MutexLock lock(&meeting_->mutex);
    Meeting::Round& mine = meeting_->Find(number);
    mine.messages[rank_] = std::string(message);
    mine.here[rank_] = true;
    ++mine.arrived;
    auto complete = [this, number] { return meeting_->Find(number).arrived == meeting_->world; };
    if (!meeting_->mutex.AwaitWithTimeout(absl::Condition(&complete), timeout)) {
      std::vector<int> missing;
      const Meeting::Round& round = meeting_->Find(number);
      for (int r = 0; r < meeting_->world; ++r) {
        if (!round.here[r]) missing.push_back(r);
      }
      return absl::DeadlineExceededError(absl::StrCat(
          what, ": of ", meeting_->world, " ranks, rank ", absl::StrJoin(missing, ", "),
          " did not arrive within ", absl::FormatDuration(timeout)));
    }
    Meeting::Round& round = meeting_->Find(number);
    std::vector<std::string> messages = round.messages;
    if (++round.left == meeting_->world) meeting_->Drop(number);
    return messages;
  }

 private:
  std::shared_ptr<Meeting> meeting_;
  const int rank_;
  int64_t round_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<RankExchange>> MakeThreadExchanges(int world) {
  auto meeting = std::make_shared<Meeting>(world);
  std::vector<std::unique_ptr<RankExchange>> exchanges;
  for (int rank = 0; rank < world; ++rank) {
    exchanges.push_back(std::make_unique<ThreadExchange>(meeting, rank));
  }
  return exchanges;
}

}  // namespace stoker::comm
