// What every launch does around its rows, whatever the exchange: one cluster works on one token at
// a time, and a row thread owns the same vectors (16-byte packets) of each. The last warp of a CTA
// is no row warp but the service warp: in CTA 0 it exchanges the headers while the others gather,
// and in every CTA it does the launch's bookkeeping, so that none of this stands in the way of a
// row.
//
// The frame knows packets, ranks and epochs. What a row means is the producer's business and what
// happens to the sum the epilogue's; row threads call
//
//   Producer: Fetch(env, token)               begin loading what Row needs
//             Row(env, token, vectors, rows)  this rank's row, rounded to the wire type
//             bad_token(), bad_detail(env)    a token whose inputs this thread found bad, or -1
//   Epilogue: Fetch(env, token, vectors)      begin loading what Take needs
//             Take(env, token, vectors, v, sums)  the sum of the thread's v-th vector
//             Finish(env, token, vectors, turn)   all vectors of the row have been taken; the row's
//                                             scale, the same in all threads
//             Taken(v)                        what Take made of it, for ranks that did not sum
//   and there Restore(env, token, vectors, v, taken), LoadGamma(env, vectors),
//             Normalise(env, token, vectors, gamma, scale)
// and the service warp
//             FillNan(env)                    all outputs of all tokens
//
// Before the launch: the mailbox holds sentinels and the headers hold epochs e - 2, or this rank's
// earlier launches have run. After it: the same, and the epoch is one higher.
//
// Why no word is overwritten before it was read, and none is read before it was written (the proof
// is docs/decisions/protocol_safety.md):
//   A rank writes a half for epoch e + 2 only after its grid e + 1 has completed [stream order, or
//   griddepcontrol.wait], so after it had the header of e + 1 from every peer, which a peer sends
//   only after its own grid e has completed, re-arming included. Every pair of ranks exchanges that
//   header in every epoch, also with no tokens.
#pragma once

#include <cstdint>

#include "comm/exchange_params.h"
#include "comm/failure_path.h"
#include "comm/header_check.h"
#include "comm/launch_end.h"
#include "comm/mailbox.h"
#include "comm/protocol.h"

namespace stoker::comm {

template <class Env>
STOKER_DEVICE Launch BeginLaunch(Env env, const ExchangeParams& p) {
  // Read after the grid dependency: the launch before advances the epoch.
  const Control* control = ControlOf(p.workspace[p.rank]);
  uint32_t epoch = 0, abort = 0;
  if (env.lane() == 0) {
    epoch = env.LoadWord(&control->epoch);
    abort = env.LoadWord(&control->abort);
  }
  Launch launch;
  launch.epoch = env.Shuffle(epoch, 0);
  launch.failed = env.Shuffle(abort, 0) != 0u;
  return launch;
}

// The service warp's part of a launch up to its end.
template <class Env>
STOKER_DEVICE void Serve(Env env, const ExchangeParams& p, Launch& launch) {
  LastLaunch last{};
  if (env.cta() == 0) {
    if (env.lane() == 0) last = ReadLastLaunch(env, ControlOf(p.workspace[p.rank]));
    if (!launch.failed) SendHeaders(env, p, launch);
  }
  TakeTicket(env, p, launch, last);
  if (env.cta() == 0) {
    if (!AwaitHeaders(env, p, launch)) launch.failed = true;
    HandOver(env, p, launch);
  }
  if (launch.failed) env.RaiseTrouble();
}

// `Exchange::Rows(env, p, launch, tokens, vectors, producer, epilogue)` is the row threads' part.
// It calls ArriveRows once, behind its first pushes: their addresses hold the epoch, so that it has
// been read; a launch that pushes nothing has no more use for it.
template <class Exchange, int kVectors, class Env, class Producer, class Epilogue>
STOKER_DEVICE void RunLaunch(Env env, const ExchangeParams& p, Producer& producer,
                             Epilogue& epilogue) {
  if (env.thread() == 0) {
    env.ClearTrouble();
    env.InitPartials();
  }
  env.ClusterArrive();  // met before the first store to a neighbour: it must have started
  const Vectors<kVectors> vectors = OwnVectors<kVectors>(env, p.packets);
  const Tokens tokens = OwnTokens(env, p.tokens);
  const bool service = env.warp() == vectors.row_warps;
  env.GridDependencyWait();
  if (p.early_trigger != 0u) env.LaunchDependents();

  if (!service && tokens.first < tokens.end) producer.Fetch(env, tokens.first);
  Launch launch = BeginLaunch(env, p);
  env.ClusterWait();

  if (service) {
    Serve(env, p, launch);
  } else {
    if (tokens.first < tokens.end) {
      Exchange::Rows(env, p, launch, tokens, vectors, producer, epilogue);
    } else {
      env.ArriveRows();
    }
    if (producer.bad_token() >= 0) {
      env.RaiseTrouble();
      Fail(env, p, launch.epoch, FailureCode::kIndexOutOfRange, -1, producer.bad_token(), -1,
           producer.bad_detail(env));
    }
  }
  // By the row threads only: a CTA's first call counts for all of it, and before the rows are done
  // the next launch would take places that other ranks' CTAs of this one may still need.
  if (p.early_trigger == 0u && !service) env.LaunchDependents();
  env.SyncBlock();  // the CTA's rows come before its arrival
  if (service) FinishLaunch(env, p, launch, epilogue);
}

}  // namespace stoker::comm
