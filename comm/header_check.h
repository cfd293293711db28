// The header handshake of a launch: the service warp of CTA 0 tells every peer what this rank is
// about to run, and polls what the peers have told. It does so before it meets any barrier, so a
// mismatch is reported even if other warps wait for data that will never come.
#pragma once

#include <cstdint>

#include "comm/exchange_params.h"
#include "comm/failure_path.h"
#include "comm/protocol.h"

namespace stoker::comm {

// Lane r of the calling warp tells rank r, and the first lanes log the launch in the workspace. Not
// for a launch that starts after a failure: its header would overwrite one that a slow peer still
// waits for, and its log would push the launch that failed out of the ring.
template <class Env>
STOKER_DEVICE void SendHeaders(Env env, const ExchangeParams& p, const Launch& launch) {
  const uint32_t epoch = launch.epoch;
  const int peer = env.lane();
  if (peer < p.layout.world && peer != p.rank) {
    Header* slot = HeadersOf(p.workspace[peer]) + WorkspaceLayout::header_index(epoch, p.rank);
    env.StoreHeader(&slot->tokens, HeaderWord(epoch, static_cast<uint32_t>(p.tokens)));
    env.StoreHeader(&slot->signature, HeaderWord(epoch, p.signature));
  }
  constexpr int kLogWords = sizeof(LaunchEntry) / 4;
  constexpr int kEpochWord = offsetof(LaunchEntry, epoch) / 4;
  const int word = env.lane();
  if (word < kLogWords) {
    LaunchEntry* entry = RingOf(p.workspace[p.rank]) + epoch % kLaunchRing;
    const uint32_t* log = reinterpret_cast<const uint32_t*>(&p.log);
    env.StoreWord(reinterpret_cast<uint32_t*>(entry) + word,
                  word == kEpochWord ? epoch : log[word]);
  }
}

template <class Env>
STOKER_DEVICE Header LoadHeaderOf(Env env, const ExchangeParams& p, uint32_t epoch, int peer) {
  const Header* slot = HeadersOf(p.workspace[p.rank]) + WorkspaceLayout::header_index(epoch, peer);
  return Header{env.LoadHeader(&slot->tokens), env.LoadHeader(&slot->signature)};
}

STOKER_DEVICE bool HeaderMatches(const ExchangeParams& p, uint32_t epoch, const Header& seen) {
  return seen.tokens == HeaderWord(epoch, static_cast<uint32_t>(p.tokens)) &&
         seen.signature == HeaderWord(epoch, p.signature);
}

// Judges a header that does not match: false if it never will, and the launch has failed. An epoch
// of e - 2 is what the slot held before: not launched yet. (Slots start as if the launch two epochs
// before the first had used them.) In a group that has failed already the ranks' epochs drift
// apart, so there only a header of this very epoch says anything.
template <class Env>
STOKER_DEVICE bool HeaderMayCome(Env env, const ExchangeParams& p, const Launch& launch, int peer,
                                 const Header& seen) {
  const uint32_t epoch = launch.epoch;
  const uint32_t token_epoch = HeaderEpoch(seen.tokens);
  const uint32_t signature_epoch = HeaderEpoch(seen.signature);
  const bool known = (token_epoch == epoch || token_epoch == epoch - 2u) &&
                     (signature_epoch == epoch || signature_epoch == epoch - 2u);
  const bool differs =
      (token_epoch == epoch && HeaderValue(seen.tokens) != static_cast<uint32_t>(p.tokens)) ||
      (signature_epoch == epoch && HeaderValue(seen.signature) != p.signature);
  if (!differs && (known || launch.failed)) return true;
  Fail(env, p, epoch, differs ? FailureCode::kMismatch : FailureCode::kStaleOrForeign, peer, -1, -1,
       0u);
  return false;
}

// Lane r waits for rank r's header; true if it has come and matches, or if there is none to wait
// for. A launch that has failed already looks once, so that a mismatch is named on both sides.
template <class Env>
STOKER_DEVICE bool AwaitHeaders(Env env, const ExchangeParams& p, const Launch& launch) {
  const int peer = env.lane();
  if (peer >= p.layout.world || peer == p.rank) return true;
  for (int polls = 1;; ++polls) {
    const Header seen = LoadHeaderOf(env, p, launch.epoch, peer);
    if (HeaderMatches(p, launch.epoch, seen)) return true;
    if (!HeaderMayCome(env, p, launch, peer, seen) || launch.failed) return false;
    env.Await();
    if (polls % Env::kPollsPerLook == 0) {
      env.RaiseTrouble();
      if (!MayWait(env, p, launch.epoch, 1u << peer, -1, -1)) return false;
    }
  }
}

}  // namespace stoker::comm
