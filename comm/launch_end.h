// The bookkeeping of a launch, done by its service warps beside the rows: the ticket, the advance
// of the epoch, and the end.
//
// The epoch is advanced early, by CTA 0 as soon as every CTA holds it, and a CTA's arrival at the
// end is an add that nobody waits for. So a launch in which nothing goes wrong ends with its last
// output: it has neither a fence, which would wait for the stores to the peers, nor a round trip.
// Only a CTA that had to look at the clock, or failed, stays until the others have arrived, and
// decides whether the outputs stand.
#pragma once

#include <cstdint>

#include "comm/exchange_params.h"
#include "comm/failure_path.h"
#include "comm/header_check.h"
#include "comm/protocol.h"

namespace stoker::comm {

// The counters that the launch before left behind, for lane 0 of CTA 0's service warp.
struct LastLaunch {
  uint32_t finished_even, finished_odd;  // by the parity of its epoch
  uint32_t ctas;
};

template <class Env>
STOKER_DEVICE LastLaunch ReadLastLaunch(Env env, const Control* control) {
  return LastLaunch{env.LoadWord(&control->finished[0]), env.LoadWord(&control->finished[1]),
                    env.LoadWord(&control->last_ctas)};
}

// Takes this CTA's ticket, which says that none of its threads will read the epoch again, and fails
// the launch if another one is in flight on this workspace. That shows in the tickets if the other
// one has not advanced the epoch yet, and in the arrivals if it has.
template <class Env>
STOKER_DEVICE void TakeTicket(Env env, const ExchangeParams& p, Launch& launch,
                              const LastLaunch& last) {
  env.AwaitRows();
  bool alone = true;
  if (env.lane() == 0) {
    Control* control = ControlOf(p.workspace[p.rank]);
    // Release: the epoch was read before CTA 0 sees the ticket and overwrites it.
    const uint32_t ticket = env.AtomicAddRelease(&control->started, 1u);
    alone = ticket < static_cast<uint32_t>(env.ctas());
    const uint32_t arrived = launch.epoch % 2u == 0u ? last.finished_odd : last.finished_even;
    if (env.cta() == 0 && arrived != last.ctas) alone = false;
  }
  if (alone) return;
  launch.failed = true;
  Fail(env, p, launch.epoch, FailureCode::kOverlap, -1, -1, -1, 0u);
}

// CTA 0's service warp: hands the counters over to the next launch, which reads them after this
// grid has completed. Every CTA takes its ticket without waiting for anyone, so the wait here is
// one for CTAs to start. They are co-resident; if they were not, the launch would fail at its
// deadline, with this rank as the one it waited for. After an abort it is not given up at once: a
// CTA that starts after the epoch was advanced would take the next one, and leave counts behind
// that the next launch calls an overlap.
template <class Env>
STOKER_DEVICE void HandOver(Env env, const ExchangeParams& p, const Launch& launch) {
  Control* control = ControlOf(p.workspace[p.rank]);
  if (launch.epoch % kLaunchRing == kLaunchRing - 1 && !launch.failed) {
    CopyRing(env, p, env.lane(), 32);
  }
  if (env.lane() != 0) return;
  const uint32_t ctas = static_cast<uint32_t>(env.ctas());
  constexpr uint32_t kLooks = 1000;  // about a second
  for (uint32_t polls = 1; env.LoadWord(&control->started) < ctas; ++polls) {
    if (polls % Env::kPollsPerLook == 0) {
      env.RaiseTrouble();
      if (!MayWait(env, p, launch.epoch, 1u << p.rank, -1, -1) &&
          polls / Env::kPollsPerLook >= kLooks) {
        break;
      }
    }
    env.Await();
  }
  env.FenceDevice();  // acquire: the tickets come before the words below
  env.StoreWord(&control->started, 0u);
  env.StoreWord(&control->finished[(launch.epoch + 1u) & 1u], 0u);
  env.StoreWord(&control->last_ctas, ctas);
  env.StoreWord(&control->epoch, launch.epoch + 1u);
}

// How long a launch that has failed waits after the last arrival before it overwrites its outputs.
// Arrivals are relaxed, so an output stored before one may be performed after it; that it takes a
// thousand times longer than any store is what the NaN fill stands on.
inline constexpr uint64_t kSettleNs = 100'000;

// What a CTA in trouble does at the end: the outputs of all CTAs stand, or all become NaN. Several
// CTAs may do this at once, and then do the same.
template <class Env, class Epilogue>
STOKER_DEVICE void CloseTrouble(Env env, const ExchangeParams& p, const Launch& launch,
                                Epilogue& epilogue) {
  Control* control = ControlOf(p.workspace[p.rank]);
  // The others end within their deadline, or within a look at the abort word.
  constexpr uint64_t kAbortedNs = 1'000'000'000;
  uint64_t aborted_at = 0;
  while (env.LoadWord(&control->finished[launch.epoch & 1u]) < static_cast<uint32_t>(env.ctas())) {
    if (env.LoadWord(&control->abort) != 0u) {
      const uint64_t now = env.Clock();
      if (aborted_at == 0u) aborted_at = now;
      if (now - aborted_at > kAbortedNs) break;
    }
    env.Await();
  }
  // One lane looks for all: the word may be set between two looks, and each lane fills a part.
  env.SyncRows(32);
  if (env.lane() == 0 && env.LoadWord(&control->abort) == 0u) env.ClearTrouble();
  env.SyncRows(32);
  if (env.Trouble()) {
    for (const uint64_t start = env.Clock(); env.Clock() - start < kSettleNs;) env.Await();
    epilogue.FillNan(env);
  }
  if (env.LoadWord64(&control->wait_since_ns) != 0u) CloseWait(env, p);
  if (env.lane() == 0) env.StoreWord64(&control->wait_since_ns, 0u);
}

// The end of a launch, for the service warp of every CTA; the CTA's rows are done. Outputs, pushes
// and re-arming are performed when the grid completes, which is what consumers and the next launch
// wait for.
template <class Env, class Epilogue>
STOKER_DEVICE void FinishLaunch(Env env, const ExchangeParams& p, const Launch& launch,
                                Epilogue& epilogue) {
  if (env.lane() == 0) {
    env.CountUp(&ControlOf(p.workspace[p.rank])->finished[launch.epoch & 1u]);
  }
  if (env.Trouble()) CloseTrouble(env, p, launch, epilogue);
}

}  // namespace stoker::comm
