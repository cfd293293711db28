// Communicators by handle, for the op library of one device kind, and the C functions over them.
// Included by exactly one source file of each library, which says what a communicator is:
//
//   struct Kind { using Communicator = ...;
//                 static absl::StatusOr<std::unique_ptr<Communicator>> Create(...); };
//
// A handle is never reused, so a stale one is an error and not somebody else's communicator.
#pragma once

#include <pthread.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "comm/group.h"
#include "comm/rank_exchange.h"
#include "ops/communicator_api.h"

namespace stoker::ops {

// The caller's gather as a RankExchange.
class CallbackExchange : public comm::RankExchange {
 public:
  explicit CallbackExchange(const StokerGroup& group)
      : rank_(group.rank), world_(group.world), gather_(group.gather), user_(group.user) {}

  int rank() const override { return rank_; }
  int world() const override { return world_; }

  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view what,
                                                     absl::string_view message,
                                                     absl::Duration timeout) override {
    std::vector<char> slots(kMessageBytesMax * world_);
    std::vector<int64_t> lengths(world_, 0);
    const int failed = gather_(user_, std::string(what).c_str(), message.data(),
                               static_cast<int64_t>(message.size()), slots.data(), kMessageBytesMax,
                               lengths.data(), absl::ToInt64Milliseconds(timeout));
    if (failed != 0) {
      slots.back() = '\0';
      return absl::DeadlineExceededError(absl::StrCat(what, ": ", slots.data()));
    }
    std::vector<std::string> messages;
    for (int r = 0; r < world_; ++r) {
      if (lengths[r] < 0 || lengths[r] > kMessageBytesMax) {
        return absl::InternalError(
            absl::StrCat(what, ": rank ", r, " sent ", lengths[r], " bytes"));
      }
      messages.emplace_back(&slots[r * kMessageBytesMax], lengths[r]);
    }
    return messages;
  }

 private:
  const int rank_;
  const int world_;
  const StokerGather gather_;
  void* const user_;
};

template <class Communicator>
struct Member {
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<comm::RankExchange> exchange;
  absl::Mutex launching;  // held by launches and collective calls
};

template <class Communicator>
class Registry {
 public:
  using MemberPtr = std::shared_ptr<Member<Communicator>>;

  static Registry& Get() {
    static auto* registry = [] {
      auto* made = new Registry();
      // A child's copy must not be locked by a thread that the child does not have.
      pthread_atfork([] { Get().mutex_.Lock(); }, [] { Get().mutex_.Unlock(); },
                     [] { Get().mutex_.Unlock(); });
      return made;
    }();
    return *registry;
  }

  int64_t Add(MemberPtr member) {
    absl::MutexLock lock(&mutex_);
    members_[++last_] = std::move(member);
    return last_;
  }
  absl::StatusOr<MemberPtr> Find(int64_t handle) {
    absl::MutexLock lock(&mutex_);
    const auto found = members_.find(handle);
    if (found != members_.end()) {
      // Before anybody waits for the member's lock, which a thread of the parent may have held.
      STOKER_RETURN_IF_ERROR(found->second->communicator->CheckProcess());
      return found->second;
    }
    return absl::NotFoundError(
        absl::StrCat("communicator ", handle,
                     " is not open in this process; was it closed, or made for another "
                     "kind of device?"));
  }
  void Remove(int64_t handle) {
    absl::MutexLock lock(&mutex_);
    members_.erase(handle);
  }

 private:
  absl::Mutex mutex_;
  std::map<int64_t, MemberPtr> members_;
  int64_t last_ = 0;
};

// "rank 1 of 4"; nothing for a rank alone, or if there is no such communicator.
template <class Communicator>
std::string NameRank(int64_t handle) {
  const auto member = Registry<Communicator>::Get().Find(handle);
  if (!member.ok()) return "";
  const comm::GroupPlan& plan = (*member)->communicator->plan();
  return plan.world == 1 ? "" : absl::StrCat("rank ", plan.rank, " of ", plan.world);
}

inline int Report(const absl::Status& status, char* error, int64_t error_bytes) {
  if (error != nullptr && error_bytes > 0) {
    const std::string message(status.message());
    const size_t length = std::min(message.size(), static_cast<size_t>(error_bytes - 1));
    std::memcpy(error, message.data(), length);
    error[length] = '\0';
  }
  return static_cast<int>(status.code());
}

template <class Kind>
absl::StatusOr<int64_t> CreateMember(const StokerGroup& group) {
  if (group.gather == nullptr || group.name == nullptr) {
    return absl::InvalidArgumentError("a group needs a name and a gather function");
  }
  comm::GroupOptions options;
  options.name = group.name;
  options.capacity = group.capacity;
  options.hidden_max = group.hidden_max;
  if (group.device >= 0) {
    options.nccl_tokens_max = group.nccl_tokens_max;
    options.nccl_optional = group.nccl_optional != 0;
  }
  options.setup_timeout = absl::Milliseconds(group.setup_timeout_ms);
  options.timeout = options.startup_timeout = absl::Milliseconds(group.timeout_ms);
  auto member = std::make_shared<Member<typename Kind::Communicator>>();
  member->exchange = std::make_unique<CallbackExchange>(group);
  auto communicator = Kind::Create(options, group, *member->exchange);
  if (!communicator.ok()) return communicator.status();
  member->communicator = std::move(*communicator);
  return Registry<typename Kind::Communicator>::Get().Add(std::move(member));
}

}  // namespace stoker::ops

// The functions of communicator_api.h for communicators of `Kind`.
#define STOKER_DEFINE_COMMUNICATOR_API(Kind)                                                       \
  int stoker_create(const StokerGroup* group, int64_t* handle, char* error, int64_t bytes) {       \
    auto created = ::stoker::ops::CreateMember<Kind>(*group);                                      \
    if (created.ok()) *handle = *created;                                                          \
    return ::stoker::ops::Report(created.status(), error, bytes);                                  \
  }                                                                                                \
  int stoker_health(int64_t handle, char* error, int64_t bytes) {                                  \
    auto member = ::stoker::ops::Registry<Kind::Communicator>::Get().Find(handle);                 \
    return ::stoker::ops::Report(                                                                  \
        member.ok() ? (*member)->communicator->Health() : member.status(), error, bytes);          \
  }                                                                                                \
  int stoker_abort(int64_t handle, char* error, int64_t bytes) {                                   \
    auto member = ::stoker::ops::Registry<Kind::Communicator>::Get().Find(handle);                 \
    return ::stoker::ops::Report(member.ok() ? (*member)->communicator->Abort() : member.status(), \
                                 error, bytes);                                                    \
  }                                                                                                \
  int stoker_set_timeout(int64_t handle, int64_t timeout_ms, char* error, int64_t bytes) {         \
    auto member = ::stoker::ops::Registry<Kind::Communicator>::Get().Find(handle);                 \
    return ::stoker::ops::Report(                                                                  \
        member.ok() ? (*member)->communicator->SetTimeout(absl::Milliseconds(timeout_ms))          \
                    : member.status(),                                                             \
        error, bytes);                                                                             \
  }                                                                                                \
  int stoker_reset(int64_t handle, int64_t timeout_ms, char* error, int64_t bytes) {               \
    auto member = ::stoker::ops::Registry<Kind::Communicator>::Get().Find(handle);                 \
    if (!member.ok()) return ::stoker::ops::Report(member.status(), error, bytes);                 \
    absl::MutexLock lock(&(*member)->launching);                                                   \
    return ::stoker::ops::Report(                                                                  \
        (*member)->communicator->Reset(*(*member)->exchange, absl::Milliseconds(timeout_ms)),      \
        error, bytes);                                                                             \
  }                                                                                                \
  int stoker_close(int64_t handle, int64_t timeout_ms, char* error, int64_t bytes) {               \
    auto& registry = ::stoker::ops::Registry<Kind::Communicator>::Get();                           \
    auto member = registry.Find(handle);                                                           \
    if (absl::IsNotFound(member.status())) return 0; /* closed before */                           \
    if (!member.ok()) return ::stoker::ops::Report(member.status(), error, bytes);                 \
    absl::MutexLock lock(&(*member)->launching);                                                   \
    const absl::Status status =                                                                    \
        (*member)->communicator->Close(*(*member)->exchange, absl::Milliseconds(timeout_ms));      \
    registry.Remove(handle);                                                                       \
    return ::stoker::ops::Report(status, error, bytes);                                            \
  }                                                                                                \
  int stoker_describe(int64_t handle, char* text, int64_t bytes) {                                 \
    auto member = ::stoker::ops::Registry<Kind::Communicator>::Get().Find(handle);                 \
    if (!member.ok()) return ::stoker::ops::Report(member.status(), text, bytes);                  \
    ::stoker::ops::Report(absl::InternalError((*member)->communicator->plan().ToString()), text,   \
                          bytes);                                                                  \
    return 0;                                                                                      \
  }
