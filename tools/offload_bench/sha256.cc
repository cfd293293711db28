#include "tools/offload_bench/sha256.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace stoker::tools {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
std::array<uint32_t, 64> RoundConstants() {
  std::array<uint32_t, 64> constants;
  size_t count = 0;
  for (int candidate = 2; count < constants.size(); ++candidate) {
    bool prime = true;
    for (int d = 2; d * d <= candidate; ++d) prime = prime && candidate % d != 0;
    if (!prime) continue;
    const long double root = std::cbrt(static_cast<long double>(candidate));
    constants[count++] =
        static_cast<uint32_t>((root - std::floor(root)) * static_cast<long double>(1ull << 32));
  }
  return constants;
}

}  // namespace

void Sha256::Block(const uint8_t* block) {
  static const std::array<uint32_t, 64> k = RoundConstants();
  std::array<uint32_t, 64> w;
  for (int i = 0; i < 16; ++i) {
    w[i] = static_cast<uint32_t>(block[4 * i]) << 24 |
           static_cast<uint32_t>(block[4 * i + 1]) << 16 |
           static_cast<uint32_t>(block[4 * i + 2]) << 8 | block[4 * i + 3];
  }
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15];
    const uint32_t b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  std::array<uint32_t, 8> s = state_;
  for (int i = 0; i < 64; ++i) {
    const uint32_t e = s[4];
    const uint32_t a = s[0];
    const uint32_t one = s[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                         ((e & s[5]) ^ (~e & s[6])) + k[i] + w[i];
    const uint32_t two = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
                         ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
    s = {one + two, a, s[1], s[2], s[3] + one, e, s[5], s[6]};
  }
  for (int i = 0; i < 8; ++i) state_[i] += s[i];
}

void Sha256::Add(const void* data, size_t bytes) {
  const uint8_t* next = static_cast<const uint8_t*>(data);
  while (bytes > 0) {
    const size_t at = bytes_ % 64;
    const size_t take = std::min(bytes, 64 - at);
    std::memcpy(pending_.data() + at, next, take);
    next += take;
    bytes -= take;
    bytes_ += take;
    if (bytes_ % 64 == 0) Block(pending_.data());
  }
}

std::string Sha256::Hex() {
  const uint64_t bits = bytes_ * 8;
  const uint8_t one = 0x80;
  const uint8_t zero = 0;
  Add(&one, 1);
  while (bytes_ % 64 != 56) Add(&zero, 1);
  uint8_t length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  Add(length, sizeof(length));
  std::string hex;
  for (const uint32_t word : state_) {
    char digits[9];
    std::snprintf(digits, sizeof(digits), "%08x", word);
    hex += digits;
  }
  return hex;
}

}  // namespace stoker::tools
