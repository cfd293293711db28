// What ways to do a finalize + all-reduce + residual + RMSNorm must move at least.
#pragma once

#include <cstdint>

#include "moe/arguments.h"

namespace stoker::bench {

enum class Way {
  kOneShot,  // Stoker's exchanges, comm/one_shot.h and comm/two_shot.h
  kTwoShot,
  kUnfusedOneShot,  // ... behind a finalize kernel
  kUnfusedTwoShot,
  kLamport,         // FlashInfer's fused kernel: own packets too, an arena cleared a launch
  kLamportBehind,   // FlashInfer's one-shot all-reduce behind a finalize kernel
  kBarrierTwoShot,  // its two-shot all-reduce behind one
};

// Bytes that all ranks of a world read and write together in a launch, every access counted once,
// polls too: routes and the `top_k` rows a token that they name, shared row, the exchange,
// residual, gamma, both outputs.
int64_t LeastBytes(Way way, int world, const moe::Shape& shape, int top_k);

}  // namespace stoker::bench
