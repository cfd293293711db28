// The expert kernel against a read of the same bytes: hidden 2048, intermediate 768, group 32, bf16
// scales; every expert of an arena of at least 1 GiB (huge pages where the system gives them) once
// a pass; streams and GEMV interleaved ABBA. Two streams take part, one as compilers write it and
// one that fetches ahead like the kernel: the faster one counts. Prints one JSON row a kernel: the
// median over pairs of stream time / GEMV time.
//
//   gemv_bench [threads] [pairs] [arena MiB] [tokens] [kernel]
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "offload/cpu/kernel.h"

namespace stoker::offload::cpu {
namespace {

constexpr int kHidden = 2048, kIntermediate = 768, kGroup = 32;
constexpr size_t kWeights = size_t{kHidden} * kIntermediate / 2;  // of each of three matrices
constexpr size_t kScales = size_t{kHidden} * kIntermediate / kGroup * 2;
constexpr size_t kExpertBytes = 3 * (kWeights + kScales);

std::atomic<uint64_t> g_sink{0};

Expert View(const char* base) {
  const auto matrix = [&](int part, int columns) {
    return PackedMatrix{reinterpret_cast<const uint8_t*>(base + part * kWeights),
                        base + 3 * kWeights + part * kScales, size_t(columns) / 2,
                        size_t(columns) / kGroup * 2};
  };
  Expert e;
  e.hidden = kHidden;
  e.intermediate = kIntermediate;
  e.group = kGroup;
  e.gate = matrix(0, kHidden);
  e.up = matrix(1, kHidden);
  e.down = matrix(2, kIntermediate);
  return e;
}

// The compiler turns this into vector loads and adds of eight independent sums.
template <bool kAhead>
void Stream(const char* base) {
  uint64_t sums[8][8] = {};
  const uint64_t* words = reinterpret_cast<const uint64_t*>(base);
  for (size_t i = 0; i + 64 <= kExpertBytes / 8; i += 64) {
    for (int lane = 0; lane < 8; ++lane) {
      if constexpr (kAhead) __builtin_prefetch(words + i + lane * 8 + 128);  // 1 KiB
      for (int j = 0; j < 8; ++j) sums[lane][j] += words[i + lane * 8 + j];
    }
  }
  uint64_t total = 0;
  for (const auto& lane : sums) {
    for (const uint64_t sum : lane) total += sum;
  }
  g_sink.fetch_add(total, std::memory_order_relaxed);
}

// The rows of all tokens, prepared, and what a thread computes in.
struct Rows {
  explicit Rows(int tokens_) : tokens(tokens_) {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> x(kHidden);
    for (int t = 0; t < tokens; ++t) {
      for (float& v : x) v = normal(random);
      QuantizeRow(x.data(), kHidden, kGroup, input.get() + t * stride);
    }
  }

  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  static std::unique_ptr<char, Free> Aligned(size_t bytes) {
    return std::unique_ptr<char, Free>(static_cast<char*>(std::aligned_alloc(64, bytes)));
  }

  int tokens;
  size_t stride = PreparedBytes(kHidden, kGroup), stride2 = PreparedBytes(kIntermediate, kGroup);
  std::unique_ptr<char, Free> input = Aligned(stride * tokens);
  std::unique_ptr<char, Free> middle = Aligned(stride2 * tokens);
  std::vector<float> activated = std::vector<float>(size_t(tokens) * kIntermediate);
  std::vector<float> out = std::vector<float>(size_t(tokens) * kHidden);
};

void Gemv(const ExpertKernel& kernel, const char* base, Rows* r) {
  const Expert e = View(base);
  kernel.fc1(e, {r->input.get(), r->stride, r->tokens}, 0, kIntermediate,
             {r->activated.data(), kIntermediate});
  for (int t = 0; t < r->tokens; ++t) {
    QuantizeRow(r->activated.data() + t * kIntermediate, kIntermediate, kGroup,
                r->middle.get() + t * r->stride2);
  }
  kernel.fc2(e, {r->middle.get(), r->stride2, r->tokens}, 0, kHidden, {r->out.data(), kHidden});
  uint32_t bits;
  std::memcpy(&bits, r->out.data(), sizeof(bits));
  g_sink.fetch_add(bits, std::memory_order_relaxed);
}

template <class Body>
double Seconds(int threads, size_t experts, const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> others;
  const auto share = [&](int thread) {
    for (size_t i = thread; i < experts; i += threads) body(thread, i);
  };
  for (int t = 1; t < threads; ++t) others.emplace_back(share, t);
  share(0);
  for (std::thread& other : others) other.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Random content in huge pages. Random bits make no usable scales: 0x3C00 + 7 bits is 0.0078 to
// 0.0156 in bf16. Lives as long as the process.
const char* Arena(size_t experts) {
  const size_t bytes = experts * kExpertBytes;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    std::fprintf(stderr, "no memory for an arena of %zu bytes\n", bytes);
    std::exit(1);
  }
  madvise(data, bytes, MADV_HUGEPAGE);
  std::mt19937_64 random(1);
  uint64_t* words = static_cast<uint64_t*>(data);
  for (size_t i = 0; i < bytes / 8; ++i) words[i] = random();
  char* base = static_cast<char*>(data);
  for (size_t e = 0; e < experts; ++e) {
    auto* scales = reinterpret_cast<uint16_t*>(base + e * kExpertBytes + 3 * kWeights);
    for (size_t i = 0; i < 3 * kScales / 2; ++i) scales[i] = 0x3C00 | (scales[i] & 0x7F);
  }
  return base;
}

// The kernel on the first rows of one expert, which the second-level cache holds: its own limit.
double CachedGbs(const ExpertKernel& kernel, const char* base, Rows* r) {
  constexpr int kRows = 256, kRepeats = 200;
  const Expert e = View(base);
  const double seconds = Seconds(1, kRepeats, [&](int, size_t) {
    kernel.fc1(e, {r->input.get(), r->stride, r->tokens}, 0, kRows,
               {r->activated.data(), kIntermediate});
    kernel.fc2(e, {r->middle.get(), r->stride2, r->tokens}, 0, kRows, {r->out.data(), kHidden});
  });
  const size_t bytes = kRows * (2 * (kHidden / 2 + kHidden / kGroup * 2) +
                                (kIntermediate / 2 + kIntermediate / kGroup * 2));
  return 1e-9 * kRepeats * bytes / seconds;
}

int Main(int threads, int pairs, size_t mebibytes, int tokens, const char* only) {
  const size_t experts = (mebibytes << 20) / kExpertBytes + 1;
  const char* base = Arena(experts);
  std::vector<std::unique_ptr<Rows>> rows;
  for (int t = 0; t < threads; ++t) rows.push_back(std::make_unique<Rows>(tokens));
  const CpuFeatures features = DetectCpuFeatures();
  for (const ExpertKernel& kernel : AllKernels()) {
    if (!kernel.supported(features) || !std::strcmp(kernel.name, "scalar")) continue;
    if (only != nullptr && std::strcmp(kernel.name, only) != 0) continue;
    const auto plain = [&](int, size_t i) { Stream<false>(base + i * kExpertBytes); };
    const auto ahead = [&](int, size_t i) { Stream<true>(base + i * kExpertBytes); };
    const auto gemv = [&](int thread, size_t i) {
      Gemv(kernel, base + i * kExpertBytes, rows[thread].get());
    };
    const auto seconds = [&](const auto& body) { return Seconds(threads, experts, body); };
    seconds(plain);
    seconds(gemv);
    std::vector<double> plain_s, ahead_s, gemv_s, to_plain, to_ahead;
    // Shortest passes: what a pass takes when nobody else has the core.
    double fastest_stream = 1e9, fastest_gemv = 1e9;
    const auto pass = [&](const auto& body, double* fastest) {
      const double s = seconds(body);
      *fastest = std::min(*fastest, s);
      return s;
    };
    for (int pair = 0; pair < pairs; ++pair) {
      double p = pass(plain, &fastest_stream), a = pass(ahead, &fastest_stream);
      double g = pass(gemv, &fastest_gemv);
      g += pass(gemv, &fastest_gemv);
      a += pass(ahead, &fastest_stream), p += pass(plain, &fastest_stream);
      plain_s.push_back(p), ahead_s.push_back(a), gemv_s.push_back(g);
      to_plain.push_back(p / g), to_ahead.push_back(a / g);
    }
    const auto gbs = [&](const std::vector<double>& s) {
      return 2e-9 * experts * kExpertBytes / Median(s);
    };
    const std::vector<double>& best = Median(plain_s) < Median(ahead_s) ? to_plain : to_ahead;
    double load = 0;
    getloadavg(&load, 1);
    std::printf(
        "{\"op\": \"gemv\", \"kernel\": \"%s\", \"shape\": \"H2048 I768 g32 bf16\", "
        "\"threads\": %d, \"tokens\": %d, \"pairs\": %d, \"value\": %.3f, \"unit\": "
        "\"fraction of stream\", \"min\": %.3f, \"max\": %.3f, \"of_fastest_passes\": %.3f, "
        "\"gemv_gbs\": %.1f, \"plain_stream_gbs\": %.1f, \"ahead_stream_gbs\": %.1f, "
        "\"cached_one_thread_gbs\": %.1f, \"arena_mib\": %zu, \"load_average\": %.1f}\n",
        kernel.name, threads, tokens, pairs, Median(best),
        *std::min_element(best.begin(), best.end()), *std::max_element(best.begin(), best.end()),
        fastest_stream / fastest_gemv, gbs(gemv_s), gbs(plain_s), gbs(ahead_s),
        CachedGbs(kernel, base, rows[0].get()), experts * kExpertBytes >> 20, load);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace stoker::offload::cpu

int main(int argc, char** argv) {
  const auto argument = [&](int index, int fallback, int most) {
    return std::clamp(argc > index ? std::atoi(argv[index]) : fallback, 1, most);
  };
  return stoker::offload::cpu::Main(argument(1, 1, 256), argument(2, 20, 10000),
                                    argument(3, 1024, 1 << 18), argument(4, 1, 64),
                                    argc > 5 ? argv[5] : nullptr);
}
