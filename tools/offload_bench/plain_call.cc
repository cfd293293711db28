#include "tools/offload_bench/plain_call.h"

#include <immintrin.h>

#include <algorithm>

#include "offload/dispatch/load_plan.h"

namespace stoker::tools {

using offload::kFc1TileRows;
using offload::kFc2TileRows;

PlainCall::PlainCall(const offload::ExpertKernel& kernel, const offload::ExpertShape& shape,
                     int threads)
    : kernel_(kernel), shape_(shape), count_(threads) {
  prepared_.resize(kernel.PreparedBytes(shape.hidden, shape.group));
  for (int t = 1; t < threads; ++t) threads_.emplace_back([this, t] { Work(t); });
}

PlainCall::~PlainCall() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
}

void PlainCall::Barrier(int passed) {
  arrived_.fetch_add(1);
  while (arrived_.load() < passed * count_) _mm_pause();
}

void PlainCall::Work(int thread) {
  for (int call = 1;; ++call) {
    while (call_.load() < call) {
      if (stop_) return;
      _mm_pause();
    }
    Tiles(thread, 1);
    Barrier(3 * call - 2);
    Barrier(3 * call - 1);
    Tiles(thread, 2);
    Barrier(3 * call);
  }
}

void PlainCall::Tiles(int thread, int phase) {
  const int rows = phase == 1 ? shape_.intermediate : shape_.hidden;
  const int tile_rows = phase == 1 ? kFc1TileRows : kFc2TileRows;
  const int tiles = (rows + tile_rows - 1) / tile_rows;
  const int all = tiles * static_cast<int>(experts_.size());
  const size_t prepared = kernel_.PreparedBytes(shape_.intermediate, shape_.group);
  for (int i = all * thread / count_; i < all * (thread + 1) / count_; ++i) {
    const int expert = i / tiles;
    const int begin = i % tiles * tile_rows;
    const int end = std::min(begin + tile_rows, rows);
    if (phase == 1) {
      kernel_.Fc1(experts_[expert], {prepared_.data(), 0, 1}, begin, end,
                  intermediate_.data() + static_cast<size_t>(expert) * shape_.intermediate, 0);
    } else {
      kernel_.Fc2(experts_[expert], {prepared_fc2_.data() + expert * prepared, 0, 1}, begin, end,
                  rows_.data() + static_cast<size_t>(expert) * shape_.hidden, 0);
    }
  }
}

void PlainCall::Run(absl::Span<const offload::ExpertView> experts, const float* hidden,
                    absl::Span<const float> weights, float* out) {
  const size_t prepared = kernel_.PreparedBytes(shape_.intermediate, shape_.group);
  experts_ = experts;
  intermediate_.resize(experts.size() * shape_.intermediate);
  prepared_fc2_.resize(experts.size() * prepared);
  rows_.resize(experts.size() * shape_.hidden);
  kernel_.Prepare(hidden, shape_.hidden, shape_.group, prepared_.data());
  const int call = call_.fetch_add(1) + 1;
  Tiles(0, 1);
  Barrier(3 * call - 2);
  for (size_t e = 0; e < experts.size(); ++e) {
    kernel_.Prepare(intermediate_.data() + e * shape_.intermediate, shape_.intermediate,
                    shape_.group, prepared_fc2_.data() + e * prepared);
  }
  Barrier(3 * call - 1);
  Tiles(0, 2);
  Barrier(3 * call);
  std::fill(out, out + shape_.hidden, 0.0f);
  for (size_t e = 0; e < experts.size(); ++e) {
    kernel_.Accumulate(weights[e], rows_.data() + e * shape_.hidden, shape_.hidden, out);
  }
}

}  // namespace stoker::tools
