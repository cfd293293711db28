#include "comm/cpu_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/cpu_environment.h"

namespace stoker::comm {
namespace {

// In which a launch that waits sees that it has been stopped, however busy the machine is.
constexpr absl::Duration kReleaseTime = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<CpuCommunicator>> CpuCommunicator::Create(
    const GroupOptions& options, RankExchange& exchange) {
  auto communicator = std::unique_ptr<CpuCommunicator>(new CpuCommunicator());
  STOKER_ASSIGN_OR_RETURN(const EnvironmentVariables environment, EnvironmentVariables::Read());
  STOKER_ASSIGN_OR_RETURN(communicator->plan_, AgreeOnPlan(options, environment, exchange));
  const absl::Status connected = communicator->Connect(exchange, options.setup_timeout);
  if (!connected.ok()) {
    communicator->RemoveNames();
    return connected;
  }
  communicator->at_termination_.emplace([c = communicator.get()] { c->Abort().IgnoreError(); });
  return communicator;
}

CpuCommunicator::~CpuCommunicator() {
  const bool connected = at_termination_.has_value();
  at_termination_.reset();
  if (connected && !lifecycle_.closed()) Abort().IgnoreError();
}

absl::Status CpuCommunicator::Connect(RankExchange& exchange, absl::Duration timeout) {
  STOKER_ASSIGN_OR_RETURN(health_, Health::Create(plan_, -1, exchange, timeout));
  const auto name = [this](int rank) { return plan_.SharedName(absl::StrCat("rank", rank)); };
  auto own = SharedMemory::Create(name(plan_.rank), plan_.layout.bytes());
  STOKER_RETURN_IF_ERROR(exchange.AllSucceeded("creating workspaces", own.status(), timeout));
  workspace_[plan_.rank] = std::move(*own);
  Wipe(Epoch(plan_.first_epoch), Generation(0));
  absl::Status opened;
  for (int peer = 0; peer < plan_.world && opened.ok(); ++peer) {
    if (peer == plan_.rank) continue;
    auto theirs = SharedMemory::Open(name(peer), plan_.layout.bytes());
    opened = theirs.status();
    if (opened.ok()) workspace_[peer] = std::move(*theirs);
  }
  STOKER_RETURN_IF_ERROR(exchange.AllSucceeded("opening workspaces", opened, timeout));
  absl::Status checked;
  for (int peer = 0; peer < plan_.world; ++peer) {
    checked.Update(CheckControl(*ControlOf(workspace_[peer].data()), plan_, Generation(0), peer));
  }
  STOKER_RETURN_IF_ERROR(exchange.AllSucceeded("checking workspaces", checked, timeout));
  // Everybody has it mapped. Without its name it goes with the last of them, however they end.
  workspace_[plan_.rank].Unlink();
  return absl::OkStatus();
}

// Also those of members that died before they could.
void CpuCommunicator::RemoveNames() const {
  SharedMemory::Remove(plan_.SharedName("health"));
  for (int rank = 0; rank < plan_.world; ++rank) {
    SharedMemory::Remove(plan_.SharedName(absl::StrCat("rank", rank)));
  }
}

void CpuCommunicator::Wipe(Epoch first, Generation generation) {
  void* workspace = workspace_[plan_.rank].data();
  std::memset(MailboxOf(workspace), 0xFF,
              plan_.layout.scales_offset() - WorkspaceLayout::kMailboxOffset);
  for (uint32_t epoch : {first.value(), first.value() + 1u}) {
    std::fill_n(ScalesOf(workspace, plan_.layout) + plan_.layout.scale_index(epoch, 0),
                plan_.layout.capacity, HeaderWord(epoch - 2u, 0));
    for (int source = 0; source < kWorldMax; ++source) {
      // As if every peer had launched the epoch two before.
      HeadersOf(workspace)[WorkspaceLayout::header_index(epoch, source)] = {
          HeaderWord(epoch - 2u, 0), HeaderWord(epoch - 2u, 0)};
    }
  }
  const Control control = MakeControl(plan_, first, generation);
  std::memcpy(workspace, &control, sizeof(control));
  generation_ = generation;
}

ExchangeParams CpuCommunicator::Params() const {
  ExchangeParams params{};
  for (int r = 0; r < plan_.world; ++r) params.workspace[r] = workspace_[r].data();
  params.health = health_.own();
  params.layout = plan_.layout;
  params.rank = plan_.rank;
  return params;
}

absl::Status CpuCommunicator::Health() const {
  const absl::Status over = lifecycle_.over();
  return over.ok() ? health_.Check() : over;
}

absl::Status CpuCommunicator::SetTimeout(absl::Duration timeout) {
  const int64_t ms = absl::ToInt64Milliseconds(timeout);
  if (ms < 1 || ms > kTimeoutMsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout of ", ms, " ms: 1 to ", kTimeoutMsMax, " (24 h) are supported"));
  }
  return lifecycle_.WhileMapped([this, ms] {
    Control* control = ControlOf(workspace_[plan_.rank].data());
    CpuEnvironment env;
    env.StoreWord64(&control->timeout_ns, static_cast<uint64_t>(ms) * 1'000'000u);
    env.StoreWord64(&control->startup_timeout_ns, static_cast<uint64_t>(ms) * 1'000'000u);
    plan_.timeout_ns = plan_.startup_timeout_ns = ms * 1'000'000;
    return absl::OkStatus();
  });
}

absl::Status CpuCommunicator::Abort() {
  return lifecycle_.Stop([this] { return StopAll(); });
}

absl::Status CpuCommunicator::StopAll() {
  Control* control = ControlOf(workspace_[plan_.rank].data());
  FailureRecord* record = &health_.own()->record;
  CpuEnvironment env;
  // A failure that somebody has reported is the cause; stopping is what follows from it.
  if (health_.Check().ok() && env.CompareAndSwap(&control->record_claimed, 0, 1) == 0) {
    record->code = FailureCode::kAborted;
    record->epoch = env.LoadWord(&control->epoch);
    record->rank = plan_.rank;
    record->peer = record->token = record->packet = -1;
    env.StoreWord(&record->valid, generation_.load().value() + 1u);
  }
  for (int r = 0; r < plan_.world; ++r) {
    env.StoreWord(&ControlOf(workspace_[r].data())->abort, 1u);
  }
  return absl::OkStatus();
}

absl::Status CpuCommunicator::Reset(RankExchange& exchange, absl::Duration timeout) {
  const auto stop = [this] { return StopAll(); };
  STOKER_RETURN_IF_ERROR(lifecycle_.BeginReset(stop));
  absl::Status result = lifecycle_.Drain(timeout);
  if (result.ok()) result = WipeTogether(exchange, timeout);
  return lifecycle_.EndReset(result, stop);
}

absl::Status CpuCommunicator::WipeTogether(RankExchange& exchange, absl::Duration timeout) {
  const uint32_t epoch =
      CpuEnvironment().LoadWord(&ControlOf(workspace_[plan_.rank].data())->epoch);
  STOKER_ASSIGN_OR_RETURN(
      const std::vector<std::string> messages,
      exchange.AllGather("resetting",
                         absl::string_view(reinterpret_cast<const char*>(&epoch), sizeof(epoch)),
                         timeout));
  uint32_t latest = epoch;
  for (const std::string& message : messages) {
    uint32_t theirs = 0;
    if (message.size() != sizeof(theirs)) return absl::InternalError("a reset message is torn");
    std::memcpy(&theirs, message.data(), sizeof(theirs));
    if (static_cast<int32_t>(theirs - latest) > 0) latest = theirs;
  }
  Wipe(Epoch(latest + 2u), Generation(generation_.load().value() + 1u));
  health_.Wipe(generation_);
  return exchange.Barrier("wiping after a failure", timeout);
}

absl::Status CpuCommunicator::Close(RankExchange& exchange, absl::Duration timeout) {
  STOKER_ASSIGN_OR_RETURN(const bool first, lifecycle_.BeginClose());
  if (!first) return absl::OkStatus();
  absl::Status status = exchange.Barrier("closing", timeout);
  if (!status.ok()) status.Update(Abort());
  // By every member: the one whose duty it was may be dead.
  RemoveNames();
  absl::Status drained = lifecycle_.Drain(timeout);
  if (!drained.ok()) {
    status.Update(Abort());
    drained = lifecycle_.Drain(kReleaseTime);
  }
  at_termination_.reset();
  lifecycle_.EndClose();
  for (SharedMemory& workspace : workspace_) {
    // A peer that still has its mapping keeps the memory alive by it. A launch of our own that does
    // not end keeps ours: better memory lost than memory taken from under it.
    if (!drained.ok()) workspace.Leak();
    workspace = SharedMemory();
  }
  status.Update(drained);
  return status;
}

}  // namespace stoker::comm
