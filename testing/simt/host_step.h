// What the host of a rank does between launches: the six steps of a reset
// (comm/cuda_communicator.cc, comm/cpu_communicator.cc), or stopping the group. A model of that
// code, which moves memory by cudaMemcpy or memset; here every word of it is a store of its own
// that others may see early or late.
#pragma once

#include "comm/exchange_params.h"
#include "comm/mailbox.h"
#include "testing/simt/environment.h"
#include "testing/simt/world.h"

namespace stoker::testing::simt {

template <class Env>
void StopGroup(Env env, const comm::ExchangeParams& p) {
  for (int r = 0; r < p.layout.world; ++r) {
    env.StoreWord(&comm::ControlOf(p.workspace[r])->abort, 1u);
  }
  env.FenceSystem();
}

template <class Env>
void WipeOwn(Env env, const comm::ExchangeParams& p, uint32_t first_epoch,
             const comm::Control& fresh) {
  void* workspace = p.workspace[p.rank];
  for (int64_t i = 0; i < 2 * p.layout.half_packets(); ++i) {
    env.StorePacket(comm::MailboxOf(workspace) + i, comm::EmptyPacket());
  }
  for (uint32_t epoch : {first_epoch, first_epoch + 1u}) {
    const uint64_t before = comm::HeaderWord(epoch - 2u, 0);
    for (int source = 0; source < comm::kWorldMax; ++source) {
      comm::Header* header =
          comm::HeadersOf(workspace) + comm::WorkspaceLayout::header_index(epoch, source);
      env.StoreHeader(&header->tokens, before);
      env.StoreHeader(&header->signature, before);
    }
    for (int t = 0; t < p.layout.capacity; ++t) {
      env.StoreWord64(comm::ScalesOf(workspace, p.layout) + p.layout.scale_index(epoch, t), before);
    }
  }
  comm::Control control = fresh;
  control.epoch = control.first_epoch = first_epoch;
  const uint32_t* from = reinterpret_cast<const uint32_t*>(&control);
  uint32_t* to = reinterpret_cast<uint32_t*>(workspace);
  for (size_t word = 0; word < sizeof(control) / 4; ++word) env.StoreWord(to + word, from[word]);
  env.StoreWord(&p.health->record.valid, 0u);
  env.FenceSystem();
}

template <class Env>
void RunHostStep(Env env, const comm::ExchangeParams& p, const HostStep& step) {
  if (env.thread() != 0) return;
  for (uint32_t wait = TheMachine()->Draw(400); wait > 0; --wait) TheMachine()->Point();
  comm::Control* control = comm::ControlOf(p.workspace[p.rank]);
  if (step.kind == HostStep::Kind::kStop) {
    comm::FailureRecord* record = &p.health->record;
    env.StoreWord(reinterpret_cast<uint32_t*>(&record->code),
                  static_cast<uint32_t>(comm::FailureCode::kAborted));
    env.StoreWord(reinterpret_cast<uint32_t*>(&record->rank), static_cast<uint32_t>(p.rank));
    env.StoreWord64(&record->expected.signature, 1u);
    env.FenceSystem();
    env.StoreWord(&record->valid, 1u);
    StopGroup(env, p);
    return;
  }
  StopGroup(env, p);
  env.GridDependencyWait();  // its launches have ended
  step.epochs[p.rank] = env.LoadWord(&control->epoch);
  env.MeetHosts(1);
  uint32_t latest = step.epochs[p.rank];
  for (int r = 0; r < p.layout.world; ++r) {
    if (static_cast<int32_t>(step.epochs[r] - latest) > 0) latest = step.epochs[r];
  }
  WipeOwn(env, p, latest + 2u, step.fresh);
  env.MeetHosts(2);
}

}  // namespace stoker::testing::simt
