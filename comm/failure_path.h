// What a launch does when it may not wait any longer: the slow half of every poll, the report, and
// the word that tells all ranks to stop waiting. Inlined, as all of the body (a call would cost the
// polls their registers), behind a branch that a launch that works never takes. Contract: a failing
// thread substitutes NaN and goes on through every barrier; it never leaves early.
#pragma once

#include <cstdint>

#include "comm/exchange_params.h"
#include "comm/protocol.h"

#if defined(__CUDACC__)
#define STOKER_DEVICE __device__ __forceinline__
#else
#define STOKER_DEVICE inline
#endif

namespace stoker::comm {

// Copies words [first, first + step, ...) of the launch ring to the health page. The launches' log
// is kept in device memory because a store to host memory in every launch costs 0.2 us at one
// token.
template <class Env>
STOKER_DEVICE void CopyRing(Env env, const ExchangeParams& p, int first, int step) {
  const uint32_t* from = reinterpret_cast<const uint32_t*>(RingOf(p.workspace[p.rank]));
  uint32_t* to = reinterpret_cast<uint32_t*>(p.health->ring);
  constexpr int kWords = kLaunchRing * static_cast<int>(sizeof(LaunchEntry)) / 4;
#if defined(__CUDACC__)
#pragma unroll 1
#endif
  for (int word = first; word < kWords; word += step) {
    env.StoreWord(to + word, env.LoadWord(from + word));
  }
}

// Publishes the first failure of this rank and stops every rank's waiting. The record comes before
// the abort words, so whoever sees an abort word that this rank set can read why. The peer's header
// is read again here: headers are never re-armed, so it is still what the caller judged.
template <class Env>
STOKER_DEVICE void Fail(Env env, const ExchangeParams& p, uint32_t epoch, FailureCode code,
                        int32_t peer, int32_t token, int32_t packet, uint64_t detail) {
  Control* control = ControlOf(p.workspace[p.rank]);
  if (env.CompareAndSwap(&control->record_claimed, 0u, 1u) == 0u) {
    FailureRecord* record = &p.health->record;
    env.StoreWord(reinterpret_cast<uint32_t*>(&record->code), static_cast<uint32_t>(code));
    env.StoreWord(reinterpret_cast<uint32_t*>(&record->rank), static_cast<uint32_t>(p.rank));
    env.StoreWord(reinterpret_cast<uint32_t*>(&record->peer), static_cast<uint32_t>(peer));
    env.StoreWord(reinterpret_cast<uint32_t*>(&record->token), static_cast<uint32_t>(token));
    env.StoreWord(reinterpret_cast<uint32_t*>(&record->packet), static_cast<uint32_t>(packet));
    env.StoreWord(&record->epoch, epoch);
    env.StoreWord(&record->generation, p.log.descriptor.generation);
    env.StoreWord64(&record->expected.tokens, HeaderWord(epoch, static_cast<uint32_t>(p.tokens)));
    env.StoreWord64(&record->expected.signature, HeaderWord(epoch, p.signature));
    if (peer >= 0) {
      const Header* seen =
          HeadersOf(p.workspace[p.rank]) + WorkspaceLayout::header_index(epoch, peer);
      env.StoreWord64(&record->seen.tokens, env.LoadHeader(&seen->tokens));
      env.StoreWord64(&record->seen.signature, env.LoadHeader(&seen->signature));
    }
    env.StoreWord64(&record->detail, detail);
    CopyRing(env, p, 0, 1);
    env.FenceSystem();  // the fields before `valid`: a reader that sees it sees them
    env.StoreWord(&record->valid, p.log.descriptor.generation + 1u);
  }
  env.StoreWord(&control->abort, 1u);
  env.FenceSystem();  // the record and our own word before any peer hears of it
  for (int r = 0; r < p.layout.world; ++r) {
    if (r != p.rank) env.StoreWord(&ControlOf(p.workspace[r])->abort, 1u);
  }
}

// The slow half of a poll: true if the thread may go on waiting. `peers` is the set of ranks that
// it waits for. Fails the launch when its deadline has passed. The deadline counts from the
// launch's first wait: the first thread to come here stores the time, all others measure from it.
template <class Env>
STOKER_DEVICE bool MayWait(Env env, const ExchangeParams& p, uint32_t epoch, uint32_t peers,
                           int32_t token, int32_t packet) {
  Control* control = ControlOf(p.workspace[p.rank]);
  if (env.LoadWord(&control->abort) != 0u) return false;
  const uint64_t now = env.Clock();
  const uint64_t found = env.CompareAndSwap64(&control->wait_since_ns, 0u, now);
  const uint64_t since = found == 0u ? now : found;
  if (found == 0u) CopyRing(env, p, 0, 1);
  const uint64_t waited = now > since ? now - since : 0u;
  const bool startup = epoch - env.LoadWord(&control->first_epoch) < kStartupEpochs;
  const uint64_t limit =
      env.LoadWord64(startup ? &control->startup_timeout_ns : &control->timeout_ns);
  int peer = 0;
  while ((peers >> peer & 1u) == 0u) ++peer;
  if (waited < limit) {
    // Whoever looks last tells the world since when this rank waits and for whom; the words are
    // independent, so any mixture of writers is a true statement about one of them.
    env.StoreWord64(&p.health->waiting_since_ns, since);
    env.StoreWord64(&p.health->waited_ns[peer], env.LoadWord64(&control->waited_ns[peer]) + waited);
    return true;
  }
  Fail(env, p, epoch, FailureCode::kTimeout, peer, token, packet, waited);
  return false;
}

// Adds what this launch waited to the totals; called by the first warp of the last CTA.
template <class Env>
STOKER_DEVICE void CloseWait(Env env, const ExchangeParams& p) {
  Control* control = ControlOf(p.workspace[p.rank]);
  if (env.lane() < p.layout.world) {
    env.StoreWord64(&control->waited_ns[env.lane()],
                    env.LoadWord64(&p.health->waited_ns[env.lane()]));
  }
  if (env.lane() == 0) env.StoreWord64(&p.health->waiting_since_ns, 0u);
}

}  // namespace stoker::comm
