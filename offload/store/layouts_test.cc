// Checkpoints of every layout of the table: where an expert's bytes lie, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "offload/store/checkpoint.h"

namespace stoker::offload {
namespace {

using ::testing::HasSubstr;

constexpr int kHidden = 64;
constexpr int kIntermediate = 32;
constexpr int kExperts = 3;

struct Entry {
  std::string name;
  const char* type;
  std::vector<uint64_t> shape;
};

// The three kinds of tensors of `count` experts (0: not stacked) with `rows` rows.
void Add(const std::string& name, uint64_t count, uint64_t rows, uint64_t k, bool zeros,
         std::vector<Entry>* entries) {
  const auto add = [&](const char* suffix, const char* type, uint64_t r, uint64_t c) {
    std::vector<uint64_t> shape{r, c};
    if (count != 0) shape.insert(shape.begin(), count);
    entries->push_back({name + suffix, type, shape});
  };
  add(".weight_packed", "I32", rows, k / 8);
  add(".weight_scale", "F16", rows, k / 32);
  if (zeros) add(".weight_zero_point", "I32", rows / 8, k / 32);
}

class LayoutTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/layout_" +
                 ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Text(const std::string& name, const std::string& text) {
    std::ofstream(directory_ + "/" + name, std::ios::binary) << text;
  }
  void Config(bool symmetric = true, const std::string& model = "qwen3_moe") {
    Text("config.json",
         absl::StrCat(R"({"model_type":")", model,
                      R"(","quantization_config":{"quant_method":"compressed-tensors",
             "format":"pack-quantized","config_groups":{"group_0":{"weights":{"num_bits":4,
             "type":"int","group_size":32,"symmetric":)",
                      symmetric ? "true" : "false", "}}}}}"));
  }
  void Safetensors(const std::string& name, const std::vector<Entry>& entries) {
    std::string json;
    uint64_t end = 0;
    for (const Entry& entry : entries) {
      uint64_t bytes = entry.type == std::string("F16") ? 2 : 4;
      for (const uint64_t size : entry.shape) bytes *= size;
      absl::StrAppend(&json, json.empty() ? "{" : ",", "\"", entry.name, "\":{\"dtype\":\"",
                      entry.type, "\",\"shape\":[", absl::StrJoin(entry.shape, ","),
                      "],\"data_offsets\":[", end, ",", end + bytes, "]}");
      end += bytes;
    }
    json += "}";
    json.resize((json.size() + 7) / 8 * 8, ' ');
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(json.size() >> (8 * i) & 0xff);
    Text(name, length + json + std::string(end, '\1'));
    data_begin_ = 8 + json.size();
  }
  std::string OpenMessage() {
    const auto checkpoint = Checkpoint::Open(directory_);
    return checkpoint.ok() ? "OK" : std::string(checkpoint.status().message());
  }
  std::vector<Entry> PerExpert(const std::string& infix, const char* gate, const char* up,
                               const char* down, bool zeros = false) {
    std::vector<Entry> entries;
    for (int e = 0; e < kExperts; ++e) {
      const std::string expert = absl::StrCat(infix, ".", e, ".");
      Add(expert + gate, 0, kIntermediate, kHidden, zeros, &entries);
      Add(expert + up, 0, kIntermediate, kHidden, zeros, &entries);
      Add(expert + down, 0, kHidden, kIntermediate, zeros, &entries);
    }
    return entries;
  }

  std::string directory_;
  uint64_t data_begin_ = 0;
};

constexpr uint64_t kWeights = kIntermediate * kHidden / 2;
constexpr uint64_t kScales = kIntermediate * kHidden / 32 * 2;
constexpr uint64_t kZeros = kIntermediate / 8 * kHidden / 32 * 4;

TEST_F(LayoutTest, MixtralAndModelsInsideMultimodalOnes) {
  Config();
  for (const char* prefix : {"model.layers.4", "model.language_model.layers.4"}) {
    Safetensors("a.safetensors",
                PerExpert(absl::StrCat(prefix, ".block_sparse_moe.experts"), "w1", "w3", "w2"));
    const auto checkpoint = Checkpoint::Open(directory_);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ((*checkpoint)->layers(), std::vector<int>{4});
    EXPECT_EQ((*checkpoint)->experts(), kExperts);
    // w1 is gate, w3 is up; the second expert starts behind the first.
    const uint64_t expert = 3 * (kWeights + kScales);
    EXPECT_EQ((*checkpoint)->extents(0, 1).parts[kUp].offset,
              data_begin_ + expert + kWeights + kScales);
  }
}

TEST_F(LayoutTest, StackedExpertsAreSlices) {
  Config();
  std::vector<Entry> entries;
  const std::string experts = "model.layers.0.mlp.experts.";
  Add(experts + "gate_proj", kExperts, kIntermediate, kHidden, false, &entries);
  Add(experts + "up_proj", kExperts, kIntermediate, kHidden, false, &entries);
  Add(experts + "down_proj", kExperts, kHidden, kIntermediate, false, &entries);
  Safetensors("a.safetensors", entries);
  const auto checkpoint = Checkpoint::Open(directory_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->experts(), kExperts);
  const ExpertExtents& second = (*checkpoint)->extents(0, 1);
  EXPECT_EQ(second.parts[kGate].offset, data_begin_ + kWeights);
  EXPECT_EQ(second.parts[kGateScale].offset, data_begin_ + kExperts * kWeights + kScales);
  EXPECT_EQ(second.bytes(), 3 * (kWeights + kScales));
  EXPECT_EQ(second.parts[kGateZero].bytes, 0u);
}

TEST_F(LayoutTest, FusedGateAndUpAreHalves) {
  Config(/*symmetric=*/false);
  std::vector<Entry> entries;
  const std::string experts = "model.layers.0.mlp.experts.";
  Add(experts + "gate_up_proj", kExperts, 2 * kIntermediate, kHidden, true, &entries);
  Add(experts + "down_proj", kExperts, kHidden, kIntermediate, true, &entries);
  Safetensors("a.safetensors", entries);
  const auto checkpoint = Checkpoint::Open(directory_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE((*checkpoint)->shape().zero_points);
  EXPECT_FALSE((*checkpoint)->shape().interleaved);
  const ExpertExtents& last = (*checkpoint)->extents(0, 2);
  EXPECT_EQ(last.parts[kGate].offset, data_begin_ + 4 * kWeights);
  EXPECT_EQ(last.parts[kUp].offset, data_begin_ + 5 * kWeights);
  EXPECT_EQ(last.parts[kUp].bytes, kWeights);
  EXPECT_EQ(last.parts[kUpZero].offset, last.parts[kGateZero].offset + kZeros);
  EXPECT_EQ(last.parts[kDownZero].bytes, kZeros);
}

TEST_F(LayoutTest, InterleavedRowsAreOnePart) {
  Config(/*symmetric=*/true, "gpt_oss");
  std::vector<Entry> entries;
  const std::string experts = "model.layers.0.mlp.experts.";
  Add(experts + "gate_up_proj", kExperts, 2 * kIntermediate, kHidden, false, &entries);
  Add(experts + "down_proj", kExperts, kHidden, kIntermediate, false, &entries);
  Safetensors("a.safetensors", entries);
  const auto checkpoint = Checkpoint::Open(directory_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE((*checkpoint)->shape().interleaved);
  EXPECT_EQ((*checkpoint)->shape().swiglu, (SwigluParameters{1.702f, 1.0f, 7.0f}));
  EXPECT_EQ((*checkpoint)->extents(0, 1).parts[kGate].bytes, 2 * kWeights);
  EXPECT_EQ((*checkpoint)->extents(0, 1).parts[kUp].bytes, 0u);
  entries.push_back({experts + "down_proj.bias", "F16", {kExperts, kHidden}});
  Safetensors("a.safetensors", entries);
  EXPECT_THAT(OpenMessage(), HasSubstr("experts with biases"));
}

TEST_F(LayoutTest, AnIndexIsBelievedAndChecked) {
  Config();
  const auto all = PerExpert("model.layers.0.mlp.experts", "gate_proj", "up_proj", "down_proj");
  const std::vector<Entry> first(all.begin(), all.begin() + 7), second(all.begin() + 7, all.end());
  Safetensors("1.safetensors", first);
  Safetensors("2.safetensors", second);
  // What the index does not name is not read.
  Text("stale.safetensors", "rubbish");
  const auto index = [&](size_t in_first) {
    std::string json;
    for (size_t i = 0; i < all.size(); ++i) {
      absl::StrAppend(&json, json.empty() ? "" : ",", "\"", all[i].name, "\":\"",
                      i < in_first ? "1" : "2", ".safetensors\"");
    }
    Text("model.safetensors.index.json", "{\"metadata\":{},\"weight_map\":{" + json + "}}");
  };
  index(7);
  EXPECT_EQ(OpenMessage(), "OK");
  index(8);
  EXPECT_THAT(OpenMessage(), HasSubstr("does not say that '2.safetensors' holds the tensor"));
  index(7);
  Safetensors("2.safetensors", {second.begin() + 1, second.end()});
  EXPECT_THAT(OpenMessage(), HasSubstr("which it does not"));
  std::filesystem::remove(directory_ + "/2.safetensors");
  EXPECT_THAT(OpenMessage(), HasSubstr("names the file '2.safetensors', which is not there"));
  for (const char* path : {"../1.safetensors", "/etc/passwd", "a", "x/1.safetensors"}) {
    Text("model.safetensors.index.json", absl::StrCat(R"({"weight_map":{"t":")", path, "\"}}"));
    EXPECT_THAT(OpenMessage(), HasSubstr("of the same directory")) << path;
  }
  Text("model.safetensors.index.json", "[]");
  EXPECT_THAT(OpenMessage(), HasSubstr("weight_map"));
}

TEST_F(LayoutTest, MissingAndSurplusParts) {
  const std::string infix = "model.layers.0.mlp.experts";
  auto entries = PerExpert(infix, "gate_proj", "up_proj", "down_proj");
  Config(/*symmetric=*/false);
  Safetensors("a.safetensors", entries);
  EXPECT_THAT(OpenMessage(), HasSubstr("expert 0 has no gate weight_zero_point"));
  Config();
  Safetensors("a.safetensors", PerExpert(infix, "gate_proj", "up_proj", "down_proj", true));
  EXPECT_THAT(OpenMessage(), HasSubstr("config.json says symmetric"));
  entries.push_back({infix + ".0.up_proj.weight_g_idx", "I32", {kHidden}});
  Safetensors("a.safetensors", entries);
  EXPECT_THAT(OpenMessage(), HasSubstr("permutes the columns"));
  entries.resize(entries.size() - 2);
  Safetensors("a.safetensors", entries);
  EXPECT_THAT(OpenMessage(), HasSubstr("expert 2 has no down weight_scale"));
}

TEST_F(LayoutTest, FormatsThatMustBePackedFirst) {
  Text("config.json", R"({"quantization_config":{"quant_method":"gptq","bits":4,"group_size":128,
      "desc_act":false,"sym":true}})");
  EXPECT_THAT(OpenMessage(), HasSubstr("stoker offload pack"));
  Text("config.json", R"({"quantization_config":{"quant_method":"gptq","bits":4,"group_size":128,
      "desc_act":true}})");
  EXPECT_THAT(OpenMessage(), HasSubstr("desc_act permutes"));
  Text("config.json", R"({"quantization_config":{"quant_method":"awq","bits":4,"group_size":16,
      "version":"gemm"}})");
  EXPECT_THAT(OpenMessage(), HasSubstr("group_size 16; use 32, 64 or 128"));
  Text("config.json", std::string(200, '['));
  EXPECT_THAT(OpenMessage(), HasSubstr("levels deep"));
}

}  // namespace
}  // namespace stoker::offload
