// Routing with the statistics of recorded models, for where no recording is at hand.
//
//   const Trace trace = GenerateTrace({.layers = 2, .experts = 64, .top_k = 8, .tokens = 100});
//
// Each layer draws from a Zipf law over a random order of its experts, exponent rising with depth;
// a route is often one of the token before, or of the few before that; at times the topic changes
// and with it the order. Pure: the same options give the same trace on every machine.
#pragma once

#include <cstdint>

#include "offload/trace/trace.h"

namespace stoker::offload {

struct GeneratorOptions {
  int layers = 48;
  int experts = 128;
  int top_k = 6;  // at most `experts`
  int tokens = 128;
  uint64_t seed = 1;
  // Chosen so that the trace has a recording's distinct experts, entropy, skew and repetition.
  double active_share = 0.55;   // of a layer's experts, what a topic asks for; at least top_k
  double first_exponent = 0.2;  // of the Zipf law of the first layer
  double last_exponent = 1.7;
  double copy_previous = 0.15;  // a route taken from the token before, on purpose
  double copy_recent = 0.25;    // or from the 2nd to 8th before
};

Trace GenerateTrace(const GeneratorOptions& options);

}  // namespace stoker::offload
