#include "offload/store/sidecar.h"

#include <cmath>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "offload/store/crc32c.h"

namespace stoker::offload {
namespace {

constexpr char kMagic[8] = {'S', 'T', 'O', 'K', 'E', 'R', 'X', '\n'};
constexpr int kMaxSide = 1 << 20;
constexpr int kMaxCount = 1 << 16;

// The first kSidecarHeaderBytes bytes; the rest of them are zeros.
struct Header {
  char magic[8];
  uint32_t version;
  uint32_t complete;
  uint64_t source;
  uint64_t record_bytes;
  uint64_t data_begin;
  uint32_t hidden, intermediate, group, scale_type, zero_points;
  float alpha, beta, limit;
  uint32_t layers, experts, chunks;
  uint32_t fc1_tile_rows, fc2_tile_rows;
  char architecture[128];
  uint32_t tables_checksum;
  uint32_t header_checksum;  // of what stands before it
};
static_assert(sizeof(Header) == 232 && sizeof(Header) <= kSidecarHeaderBytes);
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

uint64_t RoundUp(uint64_t bytes) {
  return (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

uint32_t HeaderChecksum(const Header& header) {
  return Crc32c({reinterpret_cast<const char*>(&header), offsetof(Header, header_checksum)});
}

absl::Status Refuse(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(what, "; pack the checkpoint again"));
}

absl::string_view AsBytes(const std::vector<uint32_t>& words) {
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint32_t)};
}

std::vector<uint32_t> LayerWords(const SidecarIndex& index) {
  return {index.layers.begin(), index.layers.end()};
}

absl::StatusOr<Header> CheckedHeader(absl::string_view bytes) {
  Header header;
  if (bytes.size() < sizeof(header)) return Refuse("is shorter than a header");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) return Refuse("is no .stoker file");
  if (header.version != kSidecarVersion) {
    return Refuse(
        absl::StrCat("has version ", header.version, ", this program knows ", kSidecarVersion));
  }
  if (header.header_checksum != HeaderChecksum(header)) {
    return Refuse("the header does not have its checksum");
  }
  const auto side = [](uint32_t size) { return size > 0 && size <= kMaxSide; };
  const auto count = [](uint32_t n) { return n > 0 && n <= kMaxCount; };
  const bool group = header.group == 32 || header.group == 64 || header.group == 128;
  if (!side(header.hidden) || !side(header.intermediate) || !group || header.scale_type > 2 ||
      header.hidden % header.group != 0 || header.intermediate % header.group != 0 ||
      header.zero_points > 1 || header.complete > 1 || !count(header.layers) ||
      !count(header.experts) || std::isnan(header.alpha) || std::isnan(header.beta) ||
      !(header.limit > 0)) {
    return Refuse("the header holds an impossible size");
  }
  if (header.fc1_tile_rows != kFc1TileRows || header.fc2_tile_rows != kFc2TileRows) {
    return Refuse(absl::StrCat("has tiles of ", header.fc1_tile_rows, " and ", header.fc2_tile_rows,
                               " rows, this program uses ", kFc1TileRows, " and ", kFc2TileRows));
  }
  return header;
}

}  // namespace

uint64_t SidecarIndex::DataBegin(const RecordLayout& layout) const {
  const uint64_t words = layers.size() + layers.size() * experts * ChecksumsOfExpert(layout);
  return RoundUp(kSidecarHeaderBytes + words * sizeof(uint32_t));
}

uint64_t SidecarIndex::FileBytes(const RecordLayout& layout) const {
  return DataBegin(layout) + layers.size() * experts * layout.bytes;
}

std::string EncodeSidecarIndex(const SidecarIndex& index, const RecordLayout& layout) {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kSidecarVersion;
  header.complete = index.complete ? 1 : 0;
  header.source = index.source;
  header.record_bytes = layout.bytes;
  header.data_begin = index.DataBegin(layout);
  header.hidden = index.shape.hidden;
  header.intermediate = index.shape.intermediate;
  header.group = index.shape.group;
  header.scale_type = static_cast<uint32_t>(index.shape.scale_type);
  header.zero_points = index.shape.zero_points ? 1 : 0;
  header.alpha = index.shape.swiglu.alpha;
  header.beta = index.shape.swiglu.beta;
  header.limit = index.shape.swiglu.limit;
  header.layers = static_cast<uint32_t>(index.layers.size());
  header.experts = index.experts;
  header.chunks = static_cast<uint32_t>(layout.chunks.size());
  header.fc1_tile_rows = kFc1TileRows;
  header.fc2_tile_rows = kFc2TileRows;
  index.architecture.copy(header.architecture, sizeof(header.architecture) - 1);
  const std::vector<uint32_t> layers = LayerWords(index);
  header.tables_checksum = Crc32c(AsBytes(index.checksums), Crc32c(AsBytes(layers)));
  header.header_checksum = HeaderChecksum(header);
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes.resize(kSidecarHeaderBytes, '\0');
  absl::StrAppend(&bytes, AsBytes(layers), AsBytes(index.checksums));
  bytes.resize(index.DataBegin(layout), '\0');
  return bytes;
}

uint32_t PartsChecksum(const ExpertBytes& parts) {
  uint32_t sum = 0;
  for (const std::string& part : parts) sum = Crc32c(part, sum);
  return sum;
}

absl::StatusOr<SidecarIndex> ParseSidecarHeader(absl::string_view bytes, uint64_t file_size) {
  STOKER_ASSIGN_OR_RETURN(const Header header, CheckedHeader(bytes));
  SidecarIndex index;
  index.shape.hidden = static_cast<int>(header.hidden);
  index.shape.intermediate = static_cast<int>(header.intermediate);
  index.shape.group = static_cast<int>(header.group);
  index.shape.scale_type = static_cast<ScaleType>(header.scale_type);
  index.shape.zero_points = header.zero_points == 1;
  index.shape.swiglu = {header.alpha, header.beta, header.limit};
  index.architecture =
      std::string(header.architecture, strnlen(header.architecture, sizeof(header.architecture)));
  index.experts = static_cast<int>(header.experts);
  index.source = header.source;
  index.complete = header.complete == 1;
  const RecordLayout layout(index.shape);
  // At most 2^32 records of less than 2^42 bytes: no product wraps before the division.
  const uint64_t records = static_cast<uint64_t>(header.layers) * header.experts;
  if (header.chunks != layout.chunks.size() || header.record_bytes != layout.bytes ||
      records > file_size / layout.bytes) {
    return Refuse(absl::StrCat("the header claims ", records, " records of ", header.record_bytes,
                               " bytes, the file has ", file_size));
  }
  index.layers.resize(header.layers);
  if (header.data_begin != index.DataBegin(layout) || index.FileBytes(layout) != file_size) {
    return Refuse(
        absl::StrCat("has ", file_size, " bytes, its header needs ", index.FileBytes(layout)));
  }
  return index;
}

absl::StatusOr<SidecarIndex> ReadSidecarIndex(const File& file, bool incomplete_too) {
  const auto named = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(file.path(), ": ", status.message()));
  };
  STOKER_ASSIGN_OR_RETURN(const FileIdentity identity, file.Identity());
  if (identity.size < kSidecarHeaderBytes) return named(Refuse("is shorter than a header"));
  std::string header(kSidecarHeaderBytes, '\0');
  STOKER_RETURN_IF_ERROR(ReadFully(file, 0, absl::MakeSpan(header)));
  auto index = ParseSidecarHeader(header, identity.size);
  if (!index.ok()) return named(index.status());
  if (!index->complete && !incomplete_too) return named(Refuse("was not packed to its end"));
  const RecordLayout layout(index->shape);
  const size_t layers = index->layers.size();
  std::vector<uint32_t> words(layers + layers * index->experts * index->ChecksumsOfExpert(layout));
  STOKER_RETURN_IF_ERROR(
      ReadFully(file, kSidecarHeaderBytes,
                absl::MakeSpan(reinterpret_cast<char*>(words.data()), words.size() * 4)));
  uint32_t checksum;
  std::memcpy(&checksum, header.data() + offsetof(Header, tables_checksum), sizeof(checksum));
  if (index->complete && Crc32c(AsBytes(words)) != checksum) {
    return named(absl::DataLossError("the tables do not have their checksum; pack it again"));
  }
  for (size_t i = 0; i < layers; ++i) {
    if (words[i] >= kMaxCount || (i > 0 && words[i] <= words[i - 1])) {
      return named(Refuse("the table of layers is not ascending"));
    }
    index->layers[i] = static_cast<int>(words[i]);
  }
  index->checksums.assign(words.begin() + static_cast<ptrdiff_t>(layers), words.end());
  return index;
}

}  // namespace stoker::offload
