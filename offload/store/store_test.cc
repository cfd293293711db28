#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "offload/store/checkpoint.h"
#include "offload/store/expert_names.h"
#include "offload/store/safetensors.h"
#include "testing/expert_checkpoint.h"

namespace stoker::offload {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::vector<Tensor>> Parse(const std::string& json, uint64_t data_bytes = 16) {
  return ParseSafetensorsHeader(json, 100, 100 + data_bytes);
}

TEST(Safetensors, FindsTheBytes) {
  const auto tensors = Parse(
      R"({"__metadata__":{"a":"b"},"x":{"dtype":"I32","shape":[2,1],"data_offsets":[8,16]}})");
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 1u);
  EXPECT_EQ((*tensors)[0].offset, 108u);
  EXPECT_EQ((*tensors)[0].bytes, 8u);
}

TEST(Safetensors, RefusesWhatDoesNotFit) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"x":{"dtype":"I32","shape":[4],"data_offsets":[8,24]}})", "not inside the file"},
      {R"({"x":{"dtype":"I32","shape":[1],"data_offsets":[8,4]}})", "not inside the file"},
      {R"({"x":{"dtype":"I32","shape":[1],"data_offsets":[18446744073709551615,4]}})",
       "not inside"},
      {R"({"x":{"dtype":"I32","shape":[1],"data_offsets":[-4,0]}})", "not a size"},
      {R"({"x":{"dtype":"I32","shape":[1.5],"data_offsets":[0,4]}})", "not a size"},
      {R"({"x":{"dtype":"I32","shape":[3],"data_offsets":[0,8]}})", "need 12"},
      {R"({"x":{"dtype":"I64","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
       "overflows"},
      {R"({"x":{"dtype":"I4","shape":[1],"data_offsets":[0,4]}})", "unknown dtype"},
      {R"({"x":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},
           "x":{"dtype":"I32","shape":[1],"data_offsets":[4,8]}})",
       "occurs twice"},
      {R"({"x":{"dtype":"I32","shape":[2],"data_offsets":[4,12]},
           "a":{"dtype":"I32","shape":[2],"data_offsets":[8,16]}})",
       "'a': its bytes are also those of 'x'"},
      {R"({"x":{"dtype":"I32","shape":[[[[[[1]]]]]],"data_offsets":[0,4]}})", "nested"},
      {R"({"x":3})", "needs dtype"},
      {R"([1])", "not a JSON object"},
      {R"({"x":)", "not a JSON object"},
  };
  for (const auto& [json, message] : cases) {
    EXPECT_THAT(std::string(Parse(json).status().message()), HasSubstr(message)) << json;
  }
}

TEST(ExpertNames, KnowsTheTableAndNothingElse) {
  const auto qwen = ParseExpertTensorName("model.layers.47.mlp.experts.127.down_proj.weight_scale");
  ASSERT_TRUE(qwen);
  EXPECT_EQ(qwen->layer, 47);
  EXPECT_EQ(qwen->expert, 127);
  EXPECT_EQ(qwen->projection, 2);
  EXPECT_EQ(qwen->suffix, "weight_scale");
  const auto mixtral =
      ParseExpertTensorName("model.layers.0.block_sparse_moe.experts.7.w3.weight_packed");
  ASSERT_TRUE(mixtral);
  EXPECT_EQ(mixtral->projection, 1);
  for (const char* name :
       {"model.layers.0.mlp.gate.weight", "model.layers.0.mlp.experts.x.up_proj.weight_packed",
        "model.layers.99999999999.mlp.experts.0.up_proj.weight_packed",
        "model.layers.00.mlp.experts.0.up_proj.weight_packed", ""}) {
    EXPECT_FALSE(ParseExpertTensorName(name)) << name;
  }
}

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/checkpoint_" +
                 ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(directory_);
    ASSERT_TRUE(testing::WriteExpertCheckpoint(directory_, {.experts = 3}).ok());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string OpenMessage() {
    const auto checkpoint = Checkpoint::Open(directory_);
    return checkpoint.ok() ? "OK" : std::string(checkpoint.status().message());
  }
  void Config(const std::string& from, const std::string& to) {
    std::ifstream in(directory_ + "/config.json");
    std::string text{std::istreambuf_iterator<char>(in), {}};
    ASSERT_NE(text.find(from), std::string::npos);
    text.replace(text.find(from), from.size(), to);
    std::ofstream(directory_ + "/config.json") << text;
  }
  std::string directory_;
};

TEST_F(CheckpointTest, OpensInPlace) {
  const auto checkpoint = Checkpoint::Open(directory_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->layers(), (std::vector<int>{0, 1}));
  EXPECT_EQ((*checkpoint)->experts(), 3);
  EXPECT_EQ((*checkpoint)->shape(), (ExpertShape{256, 128, 32, ScaleType::kBf16}));
  EXPECT_EQ((*checkpoint)->extents(1, 2).bytes(), 3u * 256 * 128 / 2 + 3u * 256 * 128 / 32 * 2);
  EXPECT_TRUE((*checkpoint)->CheckFile(0).ok());
  std::ofstream(directory_ + "/layer-0.safetensors", std::ios::app) << "x";
  EXPECT_THAT(std::string((*checkpoint)->CheckFile(0).message()), HasSubstr("changed"));
}

TEST_F(CheckpointTest, RefusesATruncatedFile) {
  const std::string path = directory_ + "/layer-1.safetensors";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THAT(OpenMessage(), HasSubstr("not inside the file"));
  std::filesystem::resize_file(path, 4);
  EXPECT_THAT(OpenMessage(), HasSubstr("ends at"));
}

TEST_F(CheckpointTest, RefusesSchemesThatTheKernelsDoNotKnow) {
  Config("\"actorder\": null", "\"actorder\": \"group\"");
  EXPECT_THAT(OpenMessage(), HasSubstr("actorder"));
  Config("\"actorder\": \"group\"", "\"actorder\": null");
  EXPECT_EQ(OpenMessage(), "OK");
  Config("\"symmetric\": true", "\"symmetric\": false");
  EXPECT_THAT(OpenMessage(), HasSubstr("zero_point"));
  Config("\"num_bits\": 4", "\"num_bits\": 8");
  EXPECT_THAT(OpenMessage(), HasSubstr("4-bit"));
  Config("pack-quantized", "marlin-24");
  EXPECT_THAT(OpenMessage(), HasSubstr("pack-quantized"));
}

TEST_F(CheckpointTest, AGroupSizeThatTheScalesContradictIsRefused) {
  Config("\"group_size\": 32", "\"group_size\": 64");
  EXPECT_THAT(OpenMessage(), HasSubstr("expected a scale"));
}

TEST_F(CheckpointTest, ListsTheNamesOfAnUnknownLayout) {
  for (const int layer : {0, 1}) {
    std::filesystem::remove(directory_ + "/layer-" + std::to_string(layer) + ".safetensors");
  }
  const std::string json = R"({"odd.name":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})";
  std::ofstream out(directory_ + "/a.safetensors", std::ios::binary);
  out << static_cast<char>(json.size()) << std::string(7, '\0') << json << "abcd";
  out.close();
  EXPECT_THAT(OpenMessage(), HasSubstr("odd.name"));
}

}  // namespace
}  // namespace stoker::offload
