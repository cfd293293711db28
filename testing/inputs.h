// Seeded inputs for the fused tails, the same on every machine: SplitMix64 (Steele, Lea and Flood,
// 2014), one stream an array, and no arithmetic whose last bit a library decides but exp of
// softmax.
//
// The distributions are those of the published benchmark of the finalize kernel: per rank 2 T k + 8
// permuted rows of sigma 0.5 in random order, softmax routing weights, a shared row of sigma 0.5, a
// residual of sigma 4 and gamma 1 +- 0.1 that are equal on all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "moe/arguments.h"
#include "moe/reference.h"

namespace stoker::testing {

struct InputOptions {
  moe::Shape shape;
  int32_t top_k = 8;
  // Of the reduction, which reads [experts, tokens, H] at the start of the permuted rows. Every
  // third rank has one expert less, and the rank after it two less, if there are so many.
  int32_t experts = 0;
  bool weights = true;
  moe::ScalarType weight_type = moe::ScalarType::kWire;
  bool shared = true;
  bool cold = false;
  moe::ScalarType cold_type = moe::ScalarType::kWire;
  bool residual = true;
  moe::ScalarType gamma_type = moe::ScalarType::kWire;
  float weight_bias = 0.0f;
  float eps = 1e-5f;
  float routed_scaling_factor = 2.5f;
  comm::Mode mode = comm::Mode::kRounded;
  // A quarter of the routes are -1, and all of those of token T / 2.
  bool dropped_routes = false;
  // Some rows hold NaN, infinities, -0, subnormals and values next to the largest.
  bool special_values = false;
  uint64_t seed = 1;
};

// The arrays of one rank; the arguments point into them.
struct Inputs {
  std::vector<uint16_t> rows;
  std::vector<int32_t> indices;
  std::vector<uint8_t> weights;
  std::vector<float> scales;
  std::vector<uint16_t> shared;
  std::vector<uint8_t> cold;
  std::vector<uint16_t> residual;
  std::vector<uint8_t> gamma;
  moe::FinalizeArguments finalize;
  moe::ReductionArguments reduction;
  moe::NormArguments norm;  // without outputs
};

Inputs MakeInputs(const InputOptions& options, int rank);
// Of all ranks of a world, one thread each.
std::vector<Inputs> MakeAllInputs(const InputOptions& options, int world);

// The bits that every rank must get for these inputs from the finalize, and from the reduction.
moe::NormResult Expected(const moe::Shape& shape, const std::vector<Inputs>& ranks);
moe::NormResult ExpectedOfReduction(const moe::Shape& shape, const std::vector<Inputs>& ranks);

// Uniform bits, and a standard normal number as the sum of twelve uniform ones less six.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Bits() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>((Bits() >> 32) * bound >> 32); }
  float Normal() {
    const uint64_t a = Bits(), b = Bits(), c = Bits();
    uint32_t sum = 0;
    for (int shift = 0; shift < 64; shift += 16) {
      sum += (a >> shift & 0xFFFFu) + (b >> shift & 0xFFFFu) + (c >> shift & 0xFFFFu);
    }
    return static_cast<float>(sum) * (1.0f / 65536.0f) - 6.0f;
  }

 private:
  uint64_t state_;
};

}  // namespace stoker::testing
