#include "offload/pack/expert_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "offload/pack/transpose.h"
#include "offload/store/checkpoint.h"
#include "offload/store/crc32c.h"
#include "offload/store/tensor_set.h"

namespace stoker::offload {
namespace {

constexpr uint64_t kMaxMatrixBytes = 1ull << 31;

absl::Status Refuse(absl::string_view what, absl::string_view remedy) {
  return absl::InvalidArgumentError(absl::StrCat(what, "; ", remedy));
}

void Mix(const File& file, const FileIdentity& identity, uint64_t* fingerprint) {
  const uint64_t values[] = {*fingerprint, identity.size, identity.inode,
                             static_cast<uint64_t>(identity.modified_ns)};
  const absl::string_view bytes(reinterpret_cast<const char*>(values), sizeof(values));
  *fingerprint = static_cast<uint64_t>(Crc32c(bytes)) << 32 | Crc32c(file.path(), Crc32c(bytes));
}

absl::StatusOr<std::string> ReadBytes(const File& file, uint64_t offset, uint64_t bytes) {
  std::string data(bytes, '\0');
  STOKER_RETURN_IF_ERROR(ReadFully(file, offset, absl::MakeSpan(data)));
  return data;
}

// Rows `first`, first + 2, ... of `row` bytes.
std::string EverySecond(const std::string& rows, size_t row, size_t first) {
  std::string out;
  out.reserve(rows.size() / 2);
  for (size_t at = first * row; at < rows.size(); at += 2 * row) out.append(rows, at, row);
  return out;
}

// The same for zero points, whose words hold eight rows.
std::string EverySecondZero(const std::string& words, size_t blocks, size_t first) {
  std::string out(words.size() / 2, '\0');
  const size_t rows = out.size() / 4 / blocks * 8;
  for (size_t row = 0; row < rows; ++row) {
    const size_t from = 2 * row + first;
    for (size_t block = 0; block < blocks; ++block) {
      const size_t at = ((from / 8 * blocks + block) * 8 + from % 8);
      const unsigned nibble = static_cast<unsigned char>(words[at / 2]) >> (at % 2 * 4) & 15;
      const size_t to = (row / 8 * blocks + block) * 8 + row % 8;
      out[to / 2] =
          static_cast<char>(static_cast<unsigned char>(out[to / 2]) | nibble << (to % 2 * 4));
    }
  }
  return out;
}

class InPlaceSource : public ExpertSource {
 public:
  explicit InPlaceSource(std::unique_ptr<Checkpoint> checkpoint)
      : checkpoint_(std::move(checkpoint)) {}

  absl::Status Init() {
    shape_ = checkpoint_->shape();
    shape_.interleaved = false;
    layers_ = checkpoint_->layers();
    experts_ = checkpoint_->experts();
    architecture_ = checkpoint_->architecture();
    for (int i = 0; i < checkpoint_->files(); ++i) {
      STOKER_ASSIGN_OR_RETURN(const FileIdentity identity, checkpoint_->file(i).Identity());
      Mix(checkpoint_->file(i), identity, &fingerprint_);
    }
    return absl::OkStatus();
  }

  absl::Status Read(int layer_index, int expert, ExpertBytes* parts) override {
    const ExpertExtents& extents = checkpoint_->extents(layer_index, expert);
    for (int part = 0; part < kParts; ++part) {
      const Extent& extent = extents.parts[part];
      STOKER_RETURN_IF_ERROR(checkpoint_->CheckFile(extent.file));
      STOKER_ASSIGN_OR_RETURN(
          (*parts)[part], ReadBytes(checkpoint_->file(extent.file), extent.offset, extent.bytes));
    }
    if (checkpoint_->shape().interleaved) PutApart(parts);
    return absl::OkStatus();
  }

 private:
  void PutApart(ExpertBytes* parts) const {
    const size_t blocks = shape_.hidden / shape_.group;
    const std::array<size_t, 2> rows = {static_cast<size_t>(shape_.hidden) / 2,
                                        blocks * ScaleBytes(shape_.scale_type)};
    for (int kind = 0; kind < 2; ++kind) {
      const std::string both = std::move((*parts)[3 * kind + kGate]);
      (*parts)[3 * kind + kGate] = EverySecond(both, rows[kind], 0);
      (*parts)[3 * kind + kUp] = EverySecond(both, rows[kind], 1);
    }
    if (!shape_.zero_points) return;
    const std::string both = std::move((*parts)[kGateZero]);
    (*parts)[kGateZero] = EverySecondZero(both, blocks, 0);
    (*parts)[kUpZero] = EverySecondZero(both, blocks, 1);
  }

  const std::unique_ptr<Checkpoint> checkpoint_;
};

// AWQ and GPTQ.
class TransposedSource : public ExpertSource {
 public:
  TransposedSource(TensorSet tensors, const Scheme& scheme)
      : tensors_(std::move(tensors)), scheme_(scheme) {}

  absl::Status Init() {
    format_ = scheme_.format;
    architecture_ = tensors_.architecture;
    for (const auto& [layer, experts] : tensors_.layers) {
      layers_.push_back(layer);
      experts_ = std::max(experts_, tensors_.Experts(layer));
    }
    for (const OpenFile& open : tensors_.files) Mix(*open.file, open.at_open, &fingerprint_);
    const bool awq = scheme_.format == Format::kAwq;
    STOKER_ASSIGN_OR_RETURN(const TensorSet::Matrix gate,
                            tensors_.Find(layers_[0], 0, kProjectGate, "qweight"));
    STOKER_ASSIGN_OR_RETURN(const TensorSet::Matrix scales,
                            tensors_.Find(layers_[0], 0, kProjectGate, "scales"));
    const uint64_t hidden = awq ? gate.rows : 8 * gate.rows;
    const uint64_t intermediate = awq ? 8 * gate.columns : gate.columns;
    const uint64_t group = scheme_.group;
    if (gate.rows > 1 << 20 || gate.columns > 1 << 20 || hidden == 0 || intermediate == 0 ||
        hidden > 1 << 20 || intermediate > 1 << 20 || hidden % group != 0 ||
        intermediate % group != 0) {
      return Refuse(
          absl::StrCat("tensor '", gate.name, "': ", intermediate, " x ", hidden),
          absl::StrCat("both must be multiples of the group size ", group, ", and at most 2^20"));
    }
    if (scales.type != "F16" && scales.type != "BF16") {
      return Refuse(absl::StrCat("tensor '", scales.name, "' has type ", scales.type),
                    "scales are F16 or BF16");
    }
    shape_.hidden = static_cast<int>(hidden);
    shape_.intermediate = static_cast<int>(intermediate);
    shape_.group = scheme_.group;
    shape_.scale_type = scales.type == "F16" ? ScaleType::kFp16 : ScaleType::kBf16;
    shape_.zero_points = scheme_.zero_points;
    shape_.swiglu = scheme_.swiglu;
    return absl::OkStatus();
  }

  absl::Status Read(int layer_index, int expert, ExpertBytes* parts) override {
    const int layer = layers_[layer_index];
    for (const int projection : {kProjectGate, kProjectUp, kProjectDown}) {
      const bool down = projection == kProjectDown;
      const TransposedSizes sizes{down ? shape_.hidden : shape_.intermediate,
                                  down ? shape_.intermediate : shape_.hidden, shape_.group};
      STOKER_RETURN_IF_ERROR(ReadProjection(layer, expert, projection, sizes, parts));
    }
    return absl::OkStatus();
  }

 private:
  // A tensor of this shape and type, and nothing else.
  absl::StatusOr<std::string> Load(int layer, int expert, int projection, const char* suffix,
                                   uint64_t rows, uint64_t columns, const std::string& type) {
    STOKER_ASSIGN_OR_RETURN(const TensorSet::Matrix m,
                            tensors_.Find(layer, expert, projection, suffix));
    if (m.rows != rows || m.columns != columns || m.type != type || m.bytes > kMaxMatrixBytes) {
      return Refuse(
          absl::StrCat("tensor '", m.name, "' is ", m.type, " [", m.rows, ", ", m.columns, "]"),
          absl::StrCat("expected ", type, " [", rows, ", ", columns, "]"));
    }
    const OpenFile& open = tensors_.files[m.file];
    STOKER_RETURN_IF_ERROR(CheckUnchanged(*open.file, open.at_open));
    return ReadBytes(*open.file, m.offset, m.bytes);
  }

  absl::Status CheckOrder(int layer, int expert, int projection, const TransposedSizes& s) {
    const FoundTensor* order = nullptr;
    const auto of_layer = tensors_.layers.find(layer);
    const auto of_expert = of_layer->second.find(expert);
    if (of_expert != of_layer->second.end()) {
      const auto found = of_expert->second[projection].find("g_idx");
      if (found != of_expert->second[projection].end()) order = &found->second;
    }
    if (order == nullptr) return absl::OkStatus();
    const Tensor& tensor = order->tensor;
    if (tensor.type != "I32" || tensor.bytes != 4 * static_cast<uint64_t>(s.k)) {
      return Refuse(absl::StrCat("tensor '", tensor.name, "'"), "expected an I32 for each input");
    }
    STOKER_ASSIGN_OR_RETURN(const std::string bytes, ReadBytes(*tensors_.files[order->file].file,
                                                               tensor.offset, tensor.bytes));
    for (int i = 0; i < s.k; ++i) {
      int32_t group;
      std::memcpy(&group, bytes.data() + 4 * i, sizeof(group));
      if (group != i / s.group) {
        return Refuse(absl::StrCat("tensor '", tensor.name, "' puts input ", i, " into group ",
                                   group, ": the columns are permuted"),
                      "quantise with desc_act false");
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadProjection(int layer, int expert, int projection, const TransposedSizes& s,
                              ExpertBytes* parts) {
    const bool awq = scheme_.format == Format::kAwq;
    const uint64_t n = s.n, k = s.k, blocks = s.k / s.group;
    if (!awq) STOKER_RETURN_IF_ERROR(CheckOrder(layer, expert, projection, s));
    STOKER_ASSIGN_OR_RETURN(
        const std::string weights,
        Load(layer, expert, projection, "qweight", awq ? k : k / 8, awq ? n / 8 : n, "I32"));
    STOKER_ASSIGN_OR_RETURN(const std::string scales,
                            Load(layer, expert, projection, "scales", blocks, n,
                                 shape_.scale_type == ScaleType::kFp16 ? "F16" : "BF16"));
    (*parts)[projection] = awq ? WeightsFromAwq(weights, s) : WeightsFromGptq(weights, s);
    (*parts)[kGateScale + projection] = TransposeScales(scales, s, sizeof(uint16_t));
    std::string& zeros = (*parts)[kGateZero + projection];
    zeros.clear();
    if (!shape_.zero_points && !tensors_.Has(layer, expert, projection, "qzeros")) {
      return absl::OkStatus();
    }
    STOKER_ASSIGN_OR_RETURN(const std::string packed,
                            Load(layer, expert, projection, "qzeros", blocks, n / 8, "I32"));
    zeros = awq ? ZerosFromAwq(packed, s) : ZerosFromGptq(packed, s, !scheme_.gptq_v2);
    if (shape_.zero_points) return absl::OkStatus();
    if (zeros.find_first_not_of('\x88') != std::string::npos) {
      return Refuse(absl::StrCat("layer ", layer, ", expert ", expert,
                                 ": a zero point is not 8, but config.json says symmetric"),
                    "take the config.json (sym, checkpoint_format) that belongs to the files");
    }
    zeros.clear();
    return absl::OkStatus();
  }

  const TensorSet tensors_;
  const Scheme scheme_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertSource>> OpenExpertSource(const std::string& directory,
                                                               const FileOpener& opener) {
  STOKER_ASSIGN_OR_RETURN(const auto config, opener(directory + "/config.json"));
  STOKER_ASSIGN_OR_RETURN(const Scheme scheme, ReadScheme(*config));
  if (scheme.format == Format::kPackQuantized) {
    STOKER_ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(directory, opener));
    auto source = std::make_unique<InPlaceSource>(std::move(checkpoint));
    STOKER_RETURN_IF_ERROR(source->Init());
    return source;
  }
  STOKER_ASSIGN_OR_RETURN(TensorSet tensors, OpenTensorSet(directory, opener));
  auto source = std::make_unique<TransposedSource>(std::move(tensors), scheme);
  STOKER_RETURN_IF_ERROR(source->Init());
  return source;
}

}  // namespace stoker::offload
