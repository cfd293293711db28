// Test-only builds of the finalize kernel (bf16, up to four ranks): the shipped body over
// environments that delay, poll the wrong memory, or round where the contract does not. None is in
// the shipped table.
#pragma once

namespace stoker::testing {

enum class Variant {
  kDelayed,         // random delays before stores and loads of packets; everything else as shipped
  kDelayedTwoShot,  // the same with the two-shot exchange
  kPeerPoll,  // kDelayed, but polls (and empties) the peers' mailboxes, as a published kernel does
  kRoundRoute,  // rounds the sum to bf16 after every route
  kRoundAdd,    // after the shared expert and the residual
  kRoundRank,   // after every rank
};

// The kernel's host-side address, for LaunchOptions::kernel with that many vectors a thread (1 or
// 2).
const void* VariantKernel(Variant variant, int vectors);

}  // namespace stoker::testing
