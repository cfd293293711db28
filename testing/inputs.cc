#include "testing/inputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include "comm/wire_type.h"

namespace stoker::testing {
namespace {

uint16_t Round(comm::WireType type, float value) {
  return type == comm::WireType::kBf16 ? comm::Bf16::FromFloat(value)
                                       : comm::Fp16::FromFloat(value);
}

std::vector<uint16_t> NormalRows(comm::WireType type, int64_t count, float sigma, uint64_t seed) {
  Random random(seed);
  std::vector<uint16_t> rows(count);
  for (uint16_t& element : rows) element = Round(type, sigma * random.Normal());
  return rows;
}

std::vector<uint8_t> Pack(comm::WireType type, moe::ScalarType scalar,
                          const std::vector<float>& values) {
  std::vector<uint8_t> bytes(values.size() * (scalar == moe::ScalarType::kFp32 ? 4 : 2));
  for (size_t i = 0; i < values.size(); ++i) {
    if (scalar == moe::ScalarType::kFp32) {
      std::memcpy(&bytes[4 * i], &values[i], 4);
    } else {
      const uint16_t rounded = Round(type, values[i]);
      std::memcpy(&bytes[2 * i], &rounded, 2);
    }
  }
  return bytes;
}

void SprinkleSpecialValues(comm::WireType type, std::vector<uint16_t>& rows, uint64_t seed) {
  const bool bf16 = type == comm::WireType::kBf16;
  const uint16_t infinity = bf16 ? 0x7F80 : 0x7C00;
  const uint16_t largest = infinity - 1;
  const uint16_t special[] = {infinity,
                              static_cast<uint16_t>(infinity | 0x8000),
                              static_cast<uint16_t>(infinity + 1),
                              0xFFFF,
                              0x8000,
                              0x0001,
                              0x8001,
                              largest,
                              static_cast<uint16_t>(largest | 0x8000)};
  Random random(seed);
  const int64_t count = static_cast<int64_t>(rows.size()) / 500 + 9;
  for (int64_t i = 0; i < count && !rows.empty(); ++i) {
    rows[random.Below(static_cast<uint32_t>(rows.size()))] = special[i % std::size(special)];
  }
}

// Softmax over k normal scores.
std::vector<float> RoutingWeights(int64_t tokens, int32_t top_k, uint64_t seed) {
  Random random(seed);
  std::vector<float> weights(tokens * top_k);
  for (int64_t t = 0; t < tokens; ++t) {
    float sum = 0.0f;
    for (int32_t k = 0; k < top_k; ++k) {
      weights[t * top_k + k] = std::exp(random.Normal());
      sum += weights[t * top_k + k];
    }
    for (int32_t k = 0; k < top_k; ++k) weights[t * top_k + k] /= sum;
  }
  return weights;
}

std::vector<int32_t> Indices(const InputOptions& options, int64_t row_count, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> permutation(row_count);
  std::iota(permutation.begin(), permutation.end(), 0);
  for (int64_t i = row_count - 1; i > 0; --i) {
    std::swap(permutation[i], permutation[random.Below(static_cast<uint32_t>(i + 1))]);
  }
  const int64_t routes = static_cast<int64_t>(options.shape.tokens) * options.top_k;
  std::vector<int32_t> indices(permutation.begin(), permutation.begin() + routes);
  if (options.dropped_routes) {
    for (int64_t i = 0; i < routes; ++i) {
      const bool all = i / options.top_k == options.shape.tokens / 2;
      if (all || random.Below(4) == 0) indices[i] = -1;
    }
  }
  return indices;
}

// One thread a rank.
template <class ArgumentsOf>
moe::NormResult SumAndNorm(const moe::Shape& shape, const std::vector<Inputs>& ranks,
                           const ArgumentsOf& arguments_of) {
  std::vector<moe::Rows> partials(ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back(
        [&, rank] { partials[rank] = moe::ReferencePartial(shape, arguments_of(ranks[rank])); });
  }
  for (std::thread& thread : threads) thread.join();
  return moe::ReferenceSumAndNorm(shape, partials, ranks[0].norm);
}

}  // namespace

Inputs MakeInputs(const InputOptions& options, int rank) {
  const moe::Shape& shape = options.shape;
  const int64_t elements = static_cast<int64_t>(shape.tokens) * shape.hidden;
  const int32_t experts = std::max(0, options.experts - rank % 3);
  const int64_t row_count = std::max(2 * static_cast<int64_t>(shape.tokens) * options.top_k + 8,
                                     static_cast<int64_t>(shape.tokens) * options.experts);
  // One stream an array; those that all ranks share do not depend on the rank.
  const auto stream = [&](int array, bool shared) {
    return options.seed * 0x100000001B3ull + 1000 * (shared ? 0 : rank + 1) + array;
  };
  Inputs in;
  in.rows = NormalRows(shape.wire_type, row_count * shape.hidden, 0.5f, stream(0, false));
  if (options.special_values) SprinkleSpecialValues(shape.wire_type, in.rows, stream(1, false));
  in.indices = Indices(options, row_count, stream(2, false));
  in.finalize.rows = in.rows.data();
  in.finalize.row_count = row_count;
  in.finalize.indices = in.indices.data();
  in.finalize.top_k = options.top_k;
  in.finalize.routed_scaling_factor = options.routed_scaling_factor;
  in.finalize.weight_type = options.weight_type;
  if (options.weights) {
    in.weights = Pack(shape.wire_type, options.weight_type,
                      RoutingWeights(shape.tokens, options.top_k, stream(3, false)));
    in.finalize.weights = in.weights.data();
  }
  if (options.shared) {
    in.shared = NormalRows(shape.wire_type, elements, 0.5f, stream(4, false));
    in.finalize.shared = in.shared.data();
  }
  in.reduction = {.rows = in.rows.data(), .experts = experts, .shared = in.finalize.shared};
  if (experts > 0) {
    Random random(stream(8, false));
    in.scales.resize(static_cast<int64_t>(experts) * shape.tokens);
    for (float& scale : in.scales) {
      scale = random.Below(4) == 0 ? 0.0f : std::abs(random.Normal()) / 4.0f;
    }
    in.reduction.scales = in.scales.data();
  }
  in.finalize.cold_type = options.cold_type;
  if (options.cold) {
    Random random(stream(5, false));
    std::vector<float> cold(elements);
    for (float& value : cold) value = 0.25f * random.Normal();
    in.cold = Pack(shape.wire_type, options.cold_type, cold);
    in.finalize.cold = in.cold.data();
  }
  if (options.residual) {
    in.residual = NormalRows(shape.wire_type, elements, 4.0f, stream(6, true));
    in.norm.residual_in = in.residual.data();
  }
  Random random(stream(7, true));
  std::vector<float> gamma(shape.hidden);
  for (float& value : gamma) value = 1.0f - options.weight_bias + 0.1f * random.Normal();
  in.gamma = Pack(shape.wire_type, options.gamma_type, gamma);
  in.norm.gamma = in.gamma.data();
  in.norm.gamma_type = options.gamma_type;
  in.norm.weight_bias = options.weight_bias;
  in.norm.eps = options.eps;
  in.norm.mode = options.mode;
  return in;
}

std::vector<Inputs> MakeAllInputs(const InputOptions& options, int world) {
  std::vector<Inputs> ranks(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] { ranks[rank] = MakeInputs(options, rank); });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

moe::NormResult Expected(const moe::Shape& shape, const std::vector<Inputs>& ranks) {
  return SumAndNorm(shape, ranks, [](const Inputs& in) { return in.finalize; });
}

moe::NormResult ExpectedOfReduction(const moe::Shape& shape, const std::vector<Inputs>& ranks) {
  return SumAndNorm(shape, ranks, [](const Inputs& in) { return in.reduction; });
}

}  // namespace stoker::testing
