// SHA-256 (FIPS 180-4) of a stream of bytes, for parity of outputs.
//
//   Sha256 hash;  hash.Add(bytes, size);  std::string hex = hash.Hex();
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace stoker::tools {

class Sha256 {
 public:
  void Add(const void* data, size_t bytes);
  // Of what was added so far; 64 hexadecimal digits. Ends the stream.
  std::string Hex();

 private:
  void Block(const uint8_t* block);
  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_;
  uint64_t bytes_ = 0;
};

}  // namespace stoker::tools
