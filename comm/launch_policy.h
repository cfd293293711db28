// Which exchange and which launch shape a launch gets: pure functions of the launch and of the
// placement. A shape never changes a result (comm/row_reduction.h), only how work lies on the GPU.
#pragma once

#include <cstdint>
#include <string>

#include "comm/protocol.h"

namespace stoker::comm {

// What a rank may use of its GPU.
struct Placement {
  int sms = 0;                 // streaming multiprocessors for this rank
  int warps_per_sm = 32;       // resident warps of our kernels (64 registers a thread)
  int threads_per_cta = 1024;  // largest CTA of our kernels, service warp included
  int cluster_max = 8;         // 1 where the GPU has no clusters
  int launches_in_flight =
      1;  // 2 if the next launch may start early: its CTAs wait in their places

  friend bool operator==(const Placement&, const Placement&) = default;
};

struct LaunchShape {
  int cluster = 1;   // CTAs that share a token
  int threads = 32;  // row threads per CTA; the service warp comes on top
  int vectors = 1;   // 16-byte vectors of a row per thread
  int clusters = 1;  // tokens in flight; the grid has clusters * cluster CTAs

  int ctas() const { return clusters * cluster; }
  int cta_threads() const { return threads + 32; }
  std::string ToString() const;
  friend bool operator==(const LaunchShape&, const LaunchShape&) = default;
};

const char* ProtocolName(Protocol protocol);  // "one-shot", "two-shot", "NCCL"

// What lies between the ranks of a group; the same on all of them.
struct Wire {
  double bytes_per_us = 0.0;  // that a rank can push
  double hop_us = 0.0;        // what a second exchange of a launch costs without any bytes
};

// Ranks that share one GPU share its L2 cache. Both constants are fitted to one H200: one-shot and
// two-shot take the same time where 4 MB are saved over all ranks (7 tokens of 14,336 bytes on 8
// ranks).
constexpr Wire SharedGpuWire(int world) { return Wire{4.7e6 / world, 0.85}; }

// Not measured yet: 370 GB/s of payload a GPU (https://github.com/NVIDIA/nccl-tests/issues/212),
// and a hop estimated at twice that within a GPU.
inline constexpr Wire kNvlink4Wire{370e3, 1.7};

// Which exchange a launch of `tokens` rows of `packets` 16-byte vectors gets: the two-shot one
// where the bytes that it saves take longer than its second hop, or where the one-shot exchange
// cannot hold all tokens at once: it waits for a token's peers before it gathers the next, while
// the two-shot exchange sends everything first.
Protocol ChooseProtocol(int world, int tokens, int packets, const Placement& placement,
                        const Wire& wire);

// `tokens` >= 0 rows of `packets` 16-byte vectors (1 to 2048).
//
// Few tokens: a token is spread over as many SMs as there are, at least four warps a CTA, because
// the latency of a CTA grows with its warps. Some more: small CTAs, up to three on an SM. Enough
// tokens to fill the SMs: one-shot, one CTA a token, which needs no exchange between CTAs;
// two-shot, two, because half of them can work while the others wait, and so for two ranks (2 to 3%
// faster with one peer to poll, 2 to 4% slower with three). More: one-shot, two vectors a
// thread, so that twice as many tokens are in flight. Tokens beyond that are looped over. The grid
// never exceeds what is co-resident under the placement, because a CTA that waits for a peer's CTA
// which cannot start would wait for ever.
LaunchShape ChooseLaunchShape(Protocol protocol, int world, int tokens, int packets,
                              const Placement& placement);

}  // namespace stoker::comm
