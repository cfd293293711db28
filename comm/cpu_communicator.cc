#include "comm/cpu_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/cpu_environment.h"

namespace stoker::comm {

absl::StatusOr<std::unique_ptr<CpuCommunicator>> CpuCommunicator::Create(
    const GroupOptions& options, RankExchange& exchange) {
  auto communicator = std::unique_ptr<CpuCommunicator>(new CpuCommunicator());
  STOKER_ASSIGN_OR_RETURN(const EnvironmentVariables environment, EnvironmentVariables::Read());
  STOKER_ASSIGN_OR_RETURN(communicator->plan_, AgreeOnPlan(options, environment, exchange));
  const GroupPlan& plan = communicator->plan_;
  const absl::Duration timeout = options.setup_timeout;
  STOKER_ASSIGN_OR_RETURN(communicator->health_, Health::Create(plan, -1, exchange, timeout));
  const auto name = [&plan](int rank) { return plan.SharedName(absl::StrCat("rank", rank)); };
  auto own = SharedMemory::Create(name(plan.rank), plan.layout.bytes());
  // Every rank meets the others even if it failed, so that they learn it now and not by a deadline.
  STOKER_ASSIGN_OR_RETURN(
      const std::vector<std::string> results,
      exchange.AllGather("creating workspaces", own.ok() ? "" : own.status().message(), timeout));
  STOKER_RETURN_IF_ERROR(own.status());
  for (int peer = 0; peer < plan.world; ++peer) {
    if (!results[peer].empty()) {
      return absl::UnavailableError(
          absl::StrCat("rank ", peer, " could not create its workspace: ", results[peer]));
    }
  }
  communicator->workspace_[plan.rank] = std::move(*own);
  communicator->Wipe(plan.first_epoch, 0);
  for (int peer = 0; peer < plan.world; ++peer) {
    if (peer == plan.rank) continue;
    STOKER_ASSIGN_OR_RETURN(communicator->workspace_[peer],
                            SharedMemory::Open(name(peer), plan.layout.bytes()));
  }
  STOKER_RETURN_IF_ERROR(exchange.Barrier("opening workspaces", timeout));
  // Everybody has it mapped. Without its name it goes with the last of them, however they end.
  communicator->workspace_[plan.rank].Unlink();
  return communicator;
}

void CpuCommunicator::Wipe(uint32_t first_epoch, uint32_t generation) {
  void* workspace = workspace_[plan_.rank].data();
  std::memset(MailboxOf(workspace), 0xFF, plan_.layout.bytes() - WorkspaceLayout::kMailboxOffset);
  for (uint32_t epoch : {first_epoch, first_epoch + 1u}) {
    for (int source = 0; source < kWorldMax; ++source) {
      // As if every peer had launched the epoch two before.
      HeadersOf(workspace)[WorkspaceLayout::header_index(epoch, source)] = {
          HeaderWord(epoch - 2u, 0), HeaderWord(epoch - 2u, 0)};
    }
  }
  Control control{};
  control.magic = kWorkspaceMagic;
  control.epoch = first_epoch;
  control.first_epoch = first_epoch;
  control.generation = generation;
  control.timeout_ns = plan_.timeout_ns;
  control.startup_timeout_ns = plan_.startup_timeout_ns;
  std::memcpy(workspace, &control, sizeof(control));
  generation_ = generation;
}

OneShotParams CpuCommunicator::Params() const {
  OneShotParams params{};
  for (int r = 0; r < plan_.world; ++r) params.workspace[r] = workspace_[r].data();
  params.health = health_.own();
  params.layout = plan_.layout;
  params.rank = plan_.rank;
  return params;
}

absl::Status CpuCommunicator::SetTimeout(absl::Duration timeout) {
  const int64_t ms = absl::ToInt64Milliseconds(timeout);
  if (ms < 1 || ms > kTimeoutMsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout of ", ms, " ms: 1 to ", kTimeoutMsMax, " (24 h) are supported"));
  }
  Control* control = ControlOf(workspace_[plan_.rank].data());
  CpuEnvironment env;
  env.StoreWord64(&control->timeout_ns, static_cast<uint64_t>(ms) * 1'000'000u);
  env.StoreWord64(&control->startup_timeout_ns, static_cast<uint64_t>(ms) * 1'000'000u);
  plan_.timeout_ns = plan_.startup_timeout_ns = ms * 1'000'000;
  return absl::OkStatus();
}

absl::Status CpuCommunicator::Abort() {
  if (closed_) return absl::FailedPreconditionError("the communicator is closed");
  FailureRecord* record = &health_.own()->record;
  CpuEnvironment env;
  if (env.CompareAndSwap(&ControlOf(workspace_[plan_.rank].data())->record_claimed, 0, 1) == 0) {
    record->code = FailureCode::kAborted;
    record->epoch = env.LoadWord(&ControlOf(workspace_[plan_.rank].data())->epoch);
    record->rank = plan_.rank;
    record->peer = record->token = record->packet = -1;
    env.StoreWord(&record->valid, generation_ + 1u);
  }
  for (int r = 0; r < plan_.world; ++r) {
    env.StoreWord(&ControlOf(workspace_[r].data())->abort, 1u);
  }
  return absl::OkStatus();
}

absl::Status CpuCommunicator::Reset(RankExchange& exchange, absl::Duration timeout) {
  if (closed_) return absl::FailedPreconditionError("the communicator is closed");
  STOKER_RETURN_IF_ERROR(Abort());
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
  Wipe(latest + 2u, generation_ + 1u);
  health_.Wipe(generation_);
  return exchange.Barrier("wiping after a failure", timeout);
}

absl::Status CpuCommunicator::Close(RankExchange& exchange, absl::Duration timeout) {
  if (closed_) return absl::OkStatus();
  absl::Status status = exchange.Barrier("closing", timeout);
  if (!status.ok()) status.Update(Abort());
  closed_ = true;
  // A mapping of this process goes; a peer that still has one keeps the memory alive by it.
  for (SharedMemory& workspace : workspace_) workspace = SharedMemory();
  return status;
}

}  // namespace stoker::comm
