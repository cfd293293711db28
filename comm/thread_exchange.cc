#include "comm/thread_exchange.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>

#include "absl/time/time.h"

namespace stoker::comm {
namespace {

// Where the ranks meet. A rank may enter the next call while others still read the messages of the
// last, so there are two rounds; nobody can be further ahead than that.
struct Meeting {
  explicit Meeting(int ranks) : world(ranks), rounds{Round(ranks), Round(ranks)} {}

  struct Round {
    explicit Round(int ranks) : messages(ranks), here(ranks) {}
    std::vector<std::string> messages;
    std::vector<bool> here;
    std::string what;  // of the rank that came first
    int first = 0;
    int arrived = 0;
    int left = 0;
  };

  const int world;
  // Not absl::Mutex: ThreadSanitizer does not see the order that it makes, as Abseil comes compiled
  // without it, and ranks as threads are what ThreadSanitizer is run on.
  std::mutex mutex;
  std::condition_variable changed;
  Round rounds[2];
  absl::Status over;        // the first error ...
  int64_t over_round = -1;  // ... and the call that it belongs to
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
    const absl::Status fits = CheckMessage(what, message);
    if (!fits.ok()) return fits;
    std::unique_lock<std::mutex> lock(meeting_->mutex);
    const int64_t number = next_++;
    Meeting::Round& round = meeting_->rounds[number % 2];
    // Who is late for the call that failed learns the same as the others.
    if (!meeting_->over.ok()) {
      return meeting_->over_round == number ? meeting_->over : Over(what, meeting_->over);
    }
    Arrive(round, number, what, message);
    auto decided = [this, &round] {
      return !meeting_->over.ok() || round.arrived == meeting_->world;
    };
    if (!meeting_->changed.wait_for(lock, WaitFor(timeout), decided)) {
      End(number, Missing(what, RanksMissing(round), meeting_->world, timeout));
    }
    // A later call may have failed meanwhile; this one is complete nevertheless.
    if (round.arrived != meeting_->world) return meeting_->over;
    std::vector<std::string> messages = round.messages;
    if (++round.left == meeting_->world) round = Meeting::Round(meeting_->world);
    return messages;
  }

 private:
  void Arrive(Meeting::Round& round, int64_t number, absl::string_view what,
              absl::string_view message) {
    if (round.arrived == 0) {
      round.what = std::string(what);
      round.first = rank_;
    } else if (round.what != what) {
      End(number, InAnotherCall(round.first, round.what, rank_, what));
      return;
    }
    round.messages[rank_] = std::string(message);
    round.here[rank_] = true;
    if (++round.arrived == meeting_->world) meeting_->changed.notify_all();
  }

  void End(int64_t number, const absl::Status& error) {
    meeting_->over = error;
    meeting_->over_round = number;
    meeting_->changed.notify_all();
  }

  // Of a condition variable, which cannot wait for ever: adding that to the time of day overflows.
  static std::chrono::nanoseconds WaitFor(absl::Duration timeout) {
    return absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24)));
  }

  std::vector<int> RanksMissing(const Meeting::Round& round) const {
    std::vector<int> missing;
    for (int r = 0; r < meeting_->world; ++r) {
      if (!round.here[r]) missing.push_back(r);
    }
    return missing;
  }

  std::shared_ptr<Meeting> meeting_;
  const int rank_;
  int64_t next_ = 0;
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
