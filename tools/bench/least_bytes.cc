#include "tools/bench/least_bytes.h"

namespace stoker::bench {
namespace {

// Rows of a token that the exchange moves, over all ranks.
int64_t ExchangeRows(Way way, int64_t world) {
  switch (way) {
    case Way::kOneShot:
    case Way::kUnfusedOneShot:
      // For every peer a row pushed, polled and emptied; the residual.
      return world * (3 * (world - 1) + 1);
    case Way::kTwoShot:
    case Way::kUnfusedTwoShot:
      // Every rank pushes to the owner, which reads all, empties all but its own and reads the
      // residual; its result is pushed, read and emptied for every peer.
      return world + world + (world - 1) + 1 + 3 * (world - 1);
    case Way::kLamport:
    case Way::kLamportBehind:
      // For every rank a row pushed, polled and cleared; the residual.
      return world * (3 * world + 1);
    case Way::kBarrierTwoShot:
      // Copied into the exchange buffer, read by the owner, its sum written to every rank and read
      // there; the residual.
      return 5 * world;
  }
  return 0;
}

bool HasFinalizeKernel(Way way) {
  return way != Way::kOneShot && way != Way::kTwoShot && way != Way::kLamport;
}

}  // namespace

int64_t LeastBytes(Way way, int world, const moe::Shape& shape, int top_k) {
  const int64_t row = int64_t{2} * shape.hidden;
  constexpr int64_t kRoute = 4 + 2;  // index and weight
  // Of one rank: routes and rows, shared, gamma, both outputs; the partial sum out and in again.
  const int64_t around = top_k * (row + kRoute) + 4 * row + (HasFinalizeKernel(way) ? 2 * row : 0);
  return shape.tokens * (world * around + ExchangeRows(way, world) * row);
}

}  // namespace stoker::bench
