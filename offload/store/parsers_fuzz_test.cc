// Mutated headers, indices and configs: an error or a result that holds, never more. Seeded: a
// failure prints what reproduces it. Run under AddressSanitizer, too.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>

#include "offload/store/expert_names.h"
#include "offload/store/safetensors.h"
#include "offload/store/scheme.h"
#include "offload/store/tensor_set.h"

namespace stoker::offload {
namespace {

constexpr uint64_t kDataBegin = 1000;
constexpr uint64_t kFileSize = 5000;

const char* const kHeader =
    R"({"__metadata__":{"format":"pt"},
"model.layers.0.mlp.experts.1.gate_proj.weight_packed":
{"dtype":"I32","shape":[32,8],"data_offsets":[0,1024]},
"model.layers.0.mlp.experts.gate_up_proj.weight_scale":
{"dtype":"BF16","shape":[2,16,4],"data_offsets":[1024,1280]}})";
const char* const kIndex =
    R"({"metadata":{"total_size":12},"weight_map":{"a.b":"model-00001-of-00002.safetensors",
"c.d":"model-00002-of-00002.safetensors"}})";
const char* const kConfig =
    R"({"model_type":"gpt_oss","swiglu_limit":7.0,"quantization_config":{"quant_method":
"compressed-tensors","format":"pack-quantized","config_groups":{"group_0":{"weights":{"num_bits":4,
"type":"int","symmetric":false,"group_size":32,"actorder":null}}}}})";
const char* const kGptq =
    R"({"quantization_config":{"quant_method":"gptq","bits":4,"group_size":128,"desc_act":false,
"checkpoint_format":"gptq_v2","sym":true}})";

// What numbers, strings and brackets of hostile files look like.
const char* const kTokens[] = {"-1",
                               "18446744073709551615",
                               "18446744073709551616",
                               "1e99",
                               "9223372036854775807",
                               "null",
                               "[",
                               "{",
                               "]",
                               "}",
                               "\"",
                               "\\u0000",
                               "\xff",
                               "[[[[[[[[[[[[[[[[[[",
                               "true",
                               "0.5",
                               "\"I32\"",
                               ","};

std::string Mutate(std::string text, std::mt19937_64* random) {
  const int mutations = 1 + static_cast<int>((*random)() % 4);
  for (int m = 0; m < mutations && !text.empty(); ++m) {
    const size_t at = (*random)() % text.size();
    const size_t length = 1 + (*random)() % 12;
    switch ((*random)() % 5) {
      case 0:
        text[at] = static_cast<char>((*random)() & 0xff);
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, kTokens[(*random)() % std::size(kTokens)]);
        break;
      case 3:
        text.insert(at, text.substr((*random)() % text.size(), length * 4));
        break;
      default:
        text.replace(at, length, kTokens[(*random)() % std::size(kTokens)]);
    }
  }
  return text;
}

// Calls `check` with mutations of `text`, deeper and deeper ones.
template <typename Check>
void Fuzz(const char* text, uint64_t seed, const Check& check) {
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20000; ++round) {
    const std::string mutated = Mutate(text, &random);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", round " << round << ": " << mutated);
    check(mutated);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(ParsersFuzz, HeadersStayInsideTheFile) {
  int accepted = 0;
  Fuzz(kHeader, 1, [&](const std::string& text) {
    const auto tensors = ParseSafetensorsHeader(text, kDataBegin, kFileSize);
    if (!tensors.ok()) return;
    ++accepted;
    for (const Tensor& tensor : *tensors) {
      EXPECT_GE(tensor.offset, kDataBegin);
      EXPECT_LE(tensor.offset, kFileSize);
      EXPECT_LE(tensor.bytes, kFileSize - tensor.offset);
      const auto name = ParseExpertTensorName(tensor.name);
      if (name) {
        EXPECT_GE(name->layer, 0);
        EXPECT_GE(name->expert, ExpertTensorName::kStacked);
      }
    }
  });
  EXPECT_GT(accepted, 100) << "the mutations never get past the parser";
}

TEST(ParsersFuzz, AnIndexNamesNoOtherDirectory) {
  int accepted = 0;
  Fuzz(kIndex, 2, [&](const std::string& text) {
    const auto index = ParseShardIndex(text);
    if (!index.ok()) return;
    ++accepted;
    for (const auto& [tensor, file] : *index) {
      EXPECT_EQ(file.find('/'), std::string::npos);
      EXPECT_EQ(file.find('\0'), std::string::npos);
      EXPECT_TRUE(file.ends_with(".safetensors"));
    }
  });
  EXPECT_GT(accepted, 100);
}

TEST(ParsersFuzz, ASchemeHasASupportedGroup) {
  int accepted = 0;
  for (const char* config : {kConfig, kGptq}) {
    Fuzz(config, 3, [&](const std::string& text) {
      const auto scheme = ParseScheme(text);
      if (!scheme.ok()) return;
      ++accepted;
      EXPECT_TRUE(scheme->group == 32 || scheme->group == 64 || scheme->group == 128);
      EXPECT_GT(scheme->swiglu.limit, 0);
    });
  }
  EXPECT_GT(accepted, 100);
}

TEST(ParsersFuzz, DeepNestingIsRefused) {
  for (const int depth : {100, 100000}) {
    for (const char open : {'[', '{'}) {
      const std::string text(depth, open);
      EXPECT_FALSE(ParseSafetensorsHeader(text, kDataBegin, kFileSize).ok());
      EXPECT_FALSE(ParseShardIndex(text).ok());
      EXPECT_FALSE(ParseScheme(text).ok());
    }
    std::string nested;
    for (int i = 0; i < depth; ++i) nested += "{\"a\":";
    EXPECT_FALSE(ParseSafetensorsHeader(nested, kDataBegin, kFileSize).ok());
    EXPECT_FALSE(ParseShardIndex(nested).ok());
    EXPECT_FALSE(ParseScheme(nested).ok());
  }
}

}  // namespace
}  // namespace stoker::offload
