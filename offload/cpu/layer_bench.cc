// One layer's experts on the kernels of this folder, all of them in memory, driven over stdin so
// that a script can take turns with another engine (tools/bench/offload_onnxruntime.py). No cache,
// no reads: what the engine cannot be faster than.
//
//   layer_bench WEIGHTS THREADS [kernel]
//
// WEIGHTS: int32 experts, hidden, intermediate, group; per expert [2 * intermediate, hidden / 2]
// bytes of interleaved gate and up rows and [hidden, intermediate / 2] of down; then all fp16
// scales in the same order. Each line "CALL OUT" of stdin runs a call: CALL is int32 tokens, top_k,
// float hidden [tokens, hidden], int32 ids and float weights [tokens, top_k]; a repeated CALL is
// not read again. OUT gets float [tokens, hidden], or is "-". Answers each line with its seconds
// and the processor seconds of all threads.
#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "offload/cpu/kernel.h"

namespace stoker::offload::cpu {
namespace {

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "layer_bench: %s\n", what.c_str());
  std::exit(1);
}

// Zeroed bytes at a multiple of 2 MiB, in huge pages where the system gives them.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(((bytes >> 21) + 1) << 21) {
    data_ = static_cast<char*>(std::aligned_alloc(2 << 20, bytes_));
    if (data_ == nullptr) Die("no memory");
    madvise(data_, bytes_, MADV_HUGEPAGE);
    std::memset(data_, 0, bytes_);
  }
  Buffer(Buffer&& other) noexcept : bytes_(other.bytes_), data_(other.data_) {
    other.data_ = nullptr;
  }
  ~Buffer() { std::free(data_); }
  char* data() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }

 private:
  size_t bytes_;
  char* data_;
};

struct Weights {
  int32_t experts, hidden, intermediate, group;
  Buffer bytes{0};

  Expert View(int e) const {
    const size_t h = hidden, i = intermediate, g = group;
    const char* weights = bytes.data() + e * (3 * h * i / 2);
    const char* scales = bytes.data() + experts * (3 * h * i / 2) + e * (3 * h * i / g * 2);
    const auto matrix = [&](size_t row, size_t step, size_t columns, size_t from) {
      return PackedMatrix{reinterpret_cast<const uint8_t*>(weights) + from / 2 + row * columns / 2,
                          scales + from / g * 2 + row * columns / g * 2, step * columns / 2,
                          step * columns / g * 2};
    };
    Expert view;
    view.hidden = hidden, view.intermediate = intermediate, view.group = group;
    view.scale_type = ScaleType::kFp16;
    view.gate = matrix(0, 2, h, 0);
    view.up = matrix(1, 2, h, 0);
    view.down = matrix(0, 1, i, 2 * h * i);
    return view;
  }
};

struct Call {
  int32_t tokens = 0, top_k = 0;
  std::vector<float> hidden, weights;
  std::vector<int32_t> ids;
};

template <class T>
void ReadArray(std::istream& in, T* data, size_t count) {
  in.read(reinterpret_cast<char*>(data), static_cast<std::streamsize>(count * sizeof(T)));
  if (!in) Die("a file is too short");
}

// Threads that run the phases of a call together; the caller is one of them.
class Layer {
 public:
  Layer(const Weights& weights, const ExpertKernel& kernel, int threads)
      : w_(weights), kernel_(kernel), threads_(threads), barrier_(threads) {
    for (int t = 1; t < threads; ++t) {
      others_.emplace_back([this, t] {
        while (true) {
          barrier_.arrive_and_wait();
          if (call_ == nullptr) return;
          Work(t);
        }
      });
    }
  }
  ~Layer() {
    call_ = nullptr;
    barrier_.arrive_and_wait();
    for (std::thread& other : others_) other.join();
  }

  double Run(const Call& call, float* out) {
    const auto start = std::chrono::steady_clock::now();
    call_ = &call;
    out_ = out;
    routes_.clear();
    for (int r = 0; r < call.tokens * call.top_k; ++r) routes_[call.ids[r]].push_back(r);
    barrier_.arrive_and_wait();
    Work(0);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  // This thread's part of `count`, in units of 16 rows: lines of `activated` have one writer.
  std::pair<int, int> Part(int thread, int count) const {
    const int units = (count + 15) / 16;
    return {std::min(count, units * thread / threads_ * 16),
            std::min(count, units * (thread + 1) / threads_ * 16)};
  }

  void Work(int thread) {
    const Call& c = *call_;
    const size_t h = w_.hidden, i = w_.intermediate;
    const size_t stride = PreparedBytes(w_.hidden, w_.group);
    const size_t stride2 = PreparedBytes(w_.intermediate, w_.group);
    // Once a token; then a copy a route in the order of `routes_`, so that an expert's rows lie
    // together.
    for (int t = thread; t < c.tokens; t += threads_) {
      QuantizeRow(c.hidden.data() + t * h, w_.hidden, w_.group, tokens_.data() + t * stride);
    }
    barrier_.arrive_and_wait();
    size_t row = 0;
    for (const auto& [expert, routes] : routes_) {
      for (const int r : routes) {
        if (row % threads_ == size_t(thread)) {
          std::memcpy(prepared_.data() + row * stride, tokens_.data() + r / c.top_k * stride,
                      stride);
        }
        ++row;
      }
    }
    barrier_.arrive_and_wait();
    const auto [begin, end] = Part(thread, w_.intermediate);
    row = 0;
    for (const auto& [expert, routes] : routes_) {
      kernel_.fc1(w_.View(expert),
                  {prepared_.data() + row * stride, stride, static_cast<int>(routes.size())}, begin,
                  end, {activated_.floats() + row * i, i});
      row += routes.size();
    }
    barrier_.arrive_and_wait();
    for (size_t r = thread; r < row; r += threads_) {
      QuantizeRow(activated_.floats() + r * i, w_.intermediate, w_.group,
                  middle_.data() + r * stride2);
    }
    barrier_.arrive_and_wait();
    const auto [first, last] = Part(thread, w_.hidden);
    row = 0;
    for (int t = 0; t < c.tokens; ++t) std::fill(out_ + t * h + first, out_ + t * h + last, 0.0f);
    for (const auto& [expert, routes] : routes_) {
      float* results = results_.floats() + row * h;
      kernel_.fc2(w_.View(expert),
                  {middle_.data() + row * stride2, stride2, static_cast<int>(routes.size())}, first,
                  last, {results, h});
      for (size_t j = 0; j < routes.size(); ++j) {
        const float weight = c.weights[routes[j]];
        float* sum = out_ + routes[j] / c.top_k * h;
        for (int k = first; k < last; ++k) sum[k] = std::fma(weight, results[j * h + k], sum[k]);
      }
      row += routes.size();
    }
    barrier_.arrive_and_wait();
  }

  static constexpr size_t kMaxRows = 64 * 32;  // as ReadCall allows

  const Weights& w_;
  const ExpertKernel& kernel_;
  const int threads_;
  std::barrier<> barrier_;
  std::vector<std::thread> others_;
  const Call* call_ = nullptr;
  float* out_ = nullptr;
  std::map<int, std::vector<int>> routes_;
  Buffer tokens_{64 * PreparedBytes(w_.hidden, w_.group)};
  Buffer prepared_{kMaxRows * PreparedBytes(w_.hidden, w_.group)};
  Buffer middle_{kMaxRows * PreparedBytes(w_.intermediate, w_.group)};
  Buffer activated_{kMaxRows * w_.intermediate * sizeof(float)};
  Buffer results_{kMaxRows * w_.hidden * sizeof(float)};
};

Call ReadCall(const std::string& path, const Weights& w) {
  std::ifstream in(path, std::ios::binary);
  Call c;
  ReadArray(in, &c.tokens, 1);
  ReadArray(in, &c.top_k, 1);
  if (c.tokens < 1 || c.tokens > 64 || c.top_k < 1 || c.top_k > 32) Die(path + ": out of range");
  c.hidden.resize(size_t(c.tokens) * w.hidden);
  c.ids.resize(size_t(c.tokens) * c.top_k);
  c.weights.resize(c.ids.size());
  ReadArray(in, c.hidden.data(), c.hidden.size());
  ReadArray(in, c.ids.data(), c.ids.size());
  ReadArray(in, c.weights.data(), c.weights.size());
  for (const int id : c.ids) {
    if (id < 0 || id >= w.experts) Die(path + ": no such expert");
  }
  return c;
}

int Main(const char* path, int threads, const char* name) {
  std::ifstream in(path, std::ios::binary);
  int32_t sizes[4];
  ReadArray(in, sizes, 4);
  Weights w{sizes[0], sizes[1], sizes[2], sizes[3], Buffer(0)};
  if (w.experts < 1 || w.experts > 1024 || w.hidden < 1 || w.hidden > 16384 || w.intermediate < 1 ||
      w.intermediate > 16384 || (w.group != 32 && w.group != 64 && w.group != 128) ||
      w.hidden % w.group != 0 || w.intermediate % w.group != 0) {
    Die("sizes out of range");
  }
  const size_t values = size_t(3) * w.experts * w.hidden * w.intermediate;
  const size_t bytes = values / 2 + values / w.group * 2;
  Weights weights{w.experts, w.hidden, w.intermediate, w.group, Buffer(bytes)};
  ReadArray(in, weights.bytes.data(), bytes);
  const CpuFeatures features = DetectCpuFeatures();
  const auto kernel = ChooseKernel(features, name);
  if (!kernel.ok()) Die(std::string(kernel.status().message()));
  Layer layer(weights, **kernel, threads);
  std::printf("%s\n", (*kernel)->name);
  std::fflush(stdout);
  std::map<std::string, Call> calls;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string from, to;
    words >> from >> to;
    auto found = calls.find(from);
    if (found == calls.end()) found = calls.emplace(from, ReadCall(from, weights)).first;
    std::vector<float> out(found->second.hidden.size());
    const std::clock_t before = std::clock();
    const double seconds = layer.Run(found->second, out.data());
    std::printf("%.9f %.9f\n", seconds, double(std::clock() - before) / CLOCKS_PER_SEC);
    std::fflush(stdout);
    if (to == "-") continue;
    std::ofstream file(to, std::ios::binary);
    file.write(reinterpret_cast<const char*>(out.data()),
               static_cast<std::streamsize>(out.size() * sizeof(float)));
  }
  return 0;
}

}  // namespace
}  // namespace stoker::offload::cpu

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: layer_bench WEIGHTS THREADS [kernel]\n");
    return 2;
  }
  return stoker::offload::cpu::Main(argv[1], std::clamp(std::atoi(argv[2]), 1, 256),
                                    argc > 3 ? argv[3] : nullptr);
}
