#include "testing/expert_checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace stoker::testing {
namespace {

constexpr const char* kConfig =
    R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
 "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "symmetric": true,
 "group_size": %d, "actorder": null}}}}})";

struct Matrix {
  std::string name;
  int rows;
  int columns;  // in elements of the stored type
  bool scale;
};

std::vector<Matrix> MatricesOf(const ExpertCheckpointOptions& o, int layer) {
  std::vector<Matrix> matrices;
  for (int e = 0; e < o.experts; ++e) {
    for (const char* projection : {"gate_proj", "up_proj", "down_proj"}) {
      const bool down = projection[0] == 'd';
      const int rows = down ? o.hidden : o.intermediate;
      const int k = down ? o.intermediate : o.hidden;
      const std::string name =
          absl::StrCat("model.layers.", layer, ".mlp.experts.", e, ".", projection);
      matrices.push_back({name + ".weight_packed", rows, k / 8, false});
      matrices.push_back({name + ".weight_scale", rows, k / o.group, true});
    }
  }
  return matrices;
}

std::string Header(const std::vector<Matrix>& matrices) {
  std::string json = "{";
  uint64_t offset = 0;
  for (const Matrix& m : matrices) {
    const uint64_t bytes = static_cast<uint64_t>(m.rows) * m.columns * (m.scale ? 2 : 4);
    absl::StrAppend(&json, json.size() == 1 ? "" : ",", "\"", m.name, "\":{\"dtype\":\"",
                    m.scale ? "BF16" : "I32", "\",\"shape\":[", m.rows, ",", m.columns,
                    "],\"data_offsets\":[", offset, ",", offset + bytes, "]}");
    offset += bytes;
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  return json;
}

void WriteMatrix(const Matrix& m, std::mt19937_64* random, std::ofstream* out) {
  std::vector<char> bytes(static_cast<size_t>(m.rows) * m.columns * (m.scale ? 2 : 4));
  uint64_t word = 0;
  for (size_t i = 0; i + 2 <= bytes.size(); i += 2, word >>= 16) {
    if (i % 8 == 0) word = (*random)();
    // A scale is a bfloat16 in [2^-8, 2^-7).
    const uint16_t value = m.scale ? 0x3b80 | (word & 0x7f) : word & 0xffff;
    bytes[i] = static_cast<char>(value & 0xff);
    bytes[i + 1] = static_cast<char>(value >> 8);
  }
  out->write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

absl::Status WriteExpertCheckpoint(const std::string& directory,
                                   const ExpertCheckpointOptions& options) {
  std::mt19937_64 random(options.seed);
  char config[512];
  std::snprintf(config, sizeof(config), kConfig, options.group);
  std::ofstream(directory + "/config.json") << config;
  for (int layer = 0; layer < options.layers; ++layer) {
    const std::string path = absl::StrCat(directory, "/layer-", layer, ".safetensors");
    const std::vector<Matrix> matrices = MatricesOf(options, layer);
    const std::string header = Header(matrices);
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    uint64_t length = header.size();
    for (int i = 0; i < 8; ++i, length >>= 8) out.put(static_cast<char>(length & 0xff));
    out << header;
    for (const Matrix& m : matrices) WriteMatrix(m, &random, &out);
    out.close();
    if (!out) return ErrnoStatus(errno, path);
    if (!options.durable) continue;
    const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (fd.get() < 0 || fsync(fd.get()) != 0) return ErrnoStatus(errno, path);
  }
  return absl::OkStatus();
}

}  // namespace stoker::testing
