// The header handshake of a launch: CTA 0 of each rank tells every peer what it is about to run,
// and one warp of it polls what the peers have told. It does so before the warp meets any barrier,
// so a mismatch is reported even if other warps wait for data that will never come.
#pragma once

#include <cstdint>

#include "comm/failure_path.h"
#include "comm/one_shot_params.h"
#include "comm/protocol.h"

namespace stoker::comm {

template <class Env>
STOKER_DEVICE bool IsHeaderThread(Env env, const OneShotParams& p) {
  return env.cta() == 0 && env.thread() < p.layout.world && env.thread() != p.rank;
}

// Thread r of CTA 0 tells rank r, and the first threads log the launch in the health page.
template <class Env>
STOKER_DEVICE void SendHeader(Env env, const OneShotParams& p, uint32_t epoch) {
  if (IsHeaderThread(env, p)) {
    Header* slot =
        HeadersOf(p.workspace[env.thread()]) + WorkspaceLayout::header_index(epoch, p.rank);
    env.StoreHeader(&slot->tokens, HeaderWord(epoch, static_cast<uint32_t>(p.tokens)));
    env.StoreHeader(&slot->signature, HeaderWord(epoch, p.signature));
  }
  constexpr int kLogWords = sizeof(LaunchEntry) / 4;
  constexpr int kEpochWord = offsetof(LaunchEntry, epoch) / 4;
  if (env.cta() == 0 && env.thread() < kLogWords) {
    uint32_t* entry = reinterpret_cast<uint32_t*>(&p.health->ring[epoch % kLaunchRing]);
    const uint32_t* log = reinterpret_cast<const uint32_t*>(&p.log);
    const int word = env.thread();
    env.StoreWord(entry + word, word == kEpochWord ? epoch : log[word]);
  }
}

template <class Env>
STOKER_DEVICE Header LoadPeerHeader(Env env, const OneShotParams& p, uint32_t epoch) {
  const Header* slot =
      HeadersOf(p.workspace[p.rank]) + WorkspaceLayout::header_index(epoch, env.thread());
  return Header{env.LoadHeader(&slot->tokens), env.LoadHeader(&slot->signature)};
}

STOKER_DEVICE bool HeaderMatches(const OneShotParams& p, uint32_t epoch, const Header& seen) {
  return seen.tokens == HeaderWord(epoch, static_cast<uint32_t>(p.tokens)) &&
         seen.signature == HeaderWord(epoch, p.signature);
}

// Judges a header of peer `env.thread()` that does not match: false if it never will. An epoch of
// e - 2 is what the slot held before: not launched yet. (Slots start as if the launch two epochs
// before the first had used them.)
template <class Env>
STOKER_DEVICE bool HeaderMayCome(Env env, const OneShotParams& p, uint32_t epoch) {
  const Header seen = LoadPeerHeader(env, p, epoch);
  const uint32_t token_epoch = HeaderEpoch(seen.tokens);
  const uint32_t signature_epoch = HeaderEpoch(seen.signature);
  const bool known = (token_epoch == epoch || token_epoch == epoch - 2u) &&
                     (signature_epoch == epoch || signature_epoch == epoch - 2u);
  const bool differs =
      (token_epoch == epoch && HeaderValue(seen.tokens) != static_cast<uint32_t>(p.tokens)) ||
      (signature_epoch == epoch && HeaderValue(seen.signature) != p.signature);
  if (known && !differs) return true;
  Fail(env, p, epoch, known ? FailureCode::kMismatch : FailureCode::kStaleOrForeign, env.thread(),
       -1, -1, 0u);
  return false;
}

// Waits for the peer's header; used where the launch has no data to poll. A launch that has failed
// already looks once, so that a mismatch is named on both sides.
template <class Env>
STOKER_DEVICE bool AwaitHeader(Env env, const OneShotParams& p, uint32_t epoch, bool once) {
  for (int polls = 1;; ++polls) {
    if (HeaderMatches(p, epoch, LoadPeerHeader(env, p, epoch))) return true;
    if (!HeaderMayCome(env, p, epoch) || once) return false;
    env.Await();
    if (polls % Env::kPollsPerLook == 0 && !MayWait(env, p, epoch, 1u << env.thread(), -1, -1)) {
      return false;
    }
  }
}

}  // namespace stoker::comm
