// The expert kernel against a plain read of the same bytes: one token, hidden 2048, intermediate
// 768, group 32, bf16 scales; every expert of an arena of at least 1 GiB once a pass; stream and
// GEMV interleaved ABBA. Prints one JSON row: the median over pairs of stream time / GEMV time.
//
//   gemv_bench [threads] [pairs] [arena MiB]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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
void Stream(const char* base) {
  uint64_t sums[8][8] = {};
  const uint64_t* words = reinterpret_cast<const uint64_t*>(base);
  for (size_t i = 0; i + 64 <= kExpertBytes / 8; i += 64) {
    for (int lane = 0; lane < 8; ++lane) {
      for (int j = 0; j < 8; ++j) sums[lane][j] += words[i + lane * 8 + j];
    }
  }
  uint64_t total = 0;
  for (const auto& lane : sums) {
    for (const uint64_t sum : lane) total += sum;
  }
  g_sink.fetch_add(total, std::memory_order_relaxed);
}

void Gemv(const ExpertKernel& kernel, const char* base, const std::vector<char>& token) {
  float middle[kIntermediate], out[kHidden];
  char prepared[kIntermediate * 2];
  const Expert e = View(base);
  kernel.fc1(e, {token.data(), token.size(), 1}, 0, kIntermediate, {middle, kIntermediate});
  QuantizeRow(middle, kIntermediate, kGroup, prepared);
  kernel.fc2(e, {prepared, sizeof(prepared), 1}, 0, kHidden, {out, kHidden});
  uint32_t bits;
  std::memcpy(&bits, out, sizeof(bits));
  g_sink.fetch_add(bits, std::memory_order_relaxed);
}

template <class Body>
double Seconds(int threads, size_t experts, const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> others;
  const auto share = [&](int thread) {
    for (size_t i = thread; i < experts; i += threads) body(i);
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

int Main(int threads, int pairs, size_t mebibytes) {
  const size_t experts = (mebibytes << 20) / kExpertBytes + 1;
  std::vector<uint64_t> arena(experts * kExpertBytes / 8);
  std::mt19937_64 random(1);
  for (uint64_t& word : arena) word = random();
  const char* base = reinterpret_cast<const char*>(arena.data());
  // Random bits make no usable scales: 0x3C00 + 7 bits is 0.0078 to 0.0156 in bf16.
  for (size_t e = 0; e < experts; ++e) {
    auto* scales =
        reinterpret_cast<uint16_t*>(const_cast<char*>(base) + e * kExpertBytes + 3 * kWeights);
    for (size_t i = 0; i < 3 * kScales / 2; ++i) scales[i] = 0x3C00 | (scales[i] & 0x7F);
  }
  std::vector<float> x(kHidden);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(random);
  std::vector<char> token(PreparedBytes(kHidden, kGroup));
  QuantizeRow(x.data(), kHidden, kGroup, token.data());
  const CpuFeatures features = DetectCpuFeatures();
  for (const ExpertKernel& kernel : AllKernels()) {
    if (!kernel.supported(features) || !std::strcmp(kernel.name, "scalar")) continue;
    const auto stream = [&](size_t i) { Stream(base + i * kExpertBytes); };
    const auto gemv = [&](size_t i) { Gemv(kernel, base + i * kExpertBytes, token); };
    Seconds(threads, experts, stream);
    Seconds(threads, experts, gemv);
    std::vector<double> ratios, rates;
    for (int pair = 0; pair < pairs; ++pair) {
      const double a = Seconds(threads, experts, stream), b = Seconds(threads, experts, gemv);
      const double c = Seconds(threads, experts, gemv), d = Seconds(threads, experts, stream);
      ratios.push_back((a + d) / (b + c));
      rates.push_back(2e-9 * experts * kExpertBytes / (a + d));
    }
    // The same on one expert, which caches hold: the kernel's own limit.
    const double own = Seconds(1, 200, [&](size_t) { Gemv(kernel, base, token); });
    std::printf(
        "{\"op\": \"gemv\", \"kernel\": \"%s\", \"shape\": \"H2048 I768 g32 bf16\", "
        "\"threads\": %d, \"tokens\": 1, \"pairs\": %d, \"value\": %.3f, \"unit\": "
        "\"fraction of stream\", \"min\": %.3f, \"max\": %.3f, \"stream_gbs\": %.1f, "
        "\"cached_one_thread_gbs\": %.1f, \"arena_mib\": %zu}\n",
        kernel.name, threads, pairs, Median(ratios),
        *std::min_element(ratios.begin(), ratios.end()),
        *std::max_element(ratios.begin(), ratios.end()), Median(rates), 200e-9 * kExpertBytes / own,
        experts * kExpertBytes >> 20);
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
                                    argument(3, 1024, 1 << 18));
}
