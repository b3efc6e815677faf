#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/error.h"
#include "engine/model/families/family.h"

// config.json of gpt-oss: what the class of transformers assumes where a key is absent, and what
// is refused.

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

Json SmallGptOss() {
  return Json::parse(R"({"architectures": ["GptOssForCausalLM"], "vocab_size": 256,
    "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 2})");
}

ModelConfig ParseGptOss(const Json& json) {
  return FindFamily(json, "config.json").parse_config(json, "config.json");
}

std::string FaultOfGptOss(const char* field, const Json& value, ErrorCode expected) {
  Json json = SmallGptOss();
  json[field] = value;
  try {
    ParseGptOss(json);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), expected) << error.what();
    return error.what();
  }
}

TEST(GptOssConfig, AbsentKeysHaveTheValuesOfTheClass) {
  const ModelConfig c = ParseGptOss(Json{{"model_type", "gpt_oss"}});
  EXPECT_EQ(c.n_layers, 36);
  EXPECT_EQ(c.attention.n_heads, 64);
  EXPECT_EQ(c.attention.n_kv_heads, 8);
  EXPECT_EQ(c.attention.head_dim, 64);
  EXPECT_TRUE(c.attention_bias);
  EXPECT_EQ(c.experts.router.n_experts, 128);
  EXPECT_EQ(c.experts.router.top_k, 4);
  EXPECT_TRUE(c.experts.router.softmax_of_chosen);
  EXPECT_EQ(c.experts.ffn_dim, 2880);
  EXPECT_EQ(c.LayerAttention(0).window, 128);
  EXPECT_EQ(c.LayerAttention(1).window, 0);
  EXPECT_EQ(c.rope_theta, 150000);
  EXPECT_EQ(c.rope_scaling.kind, RopeKind::kYarn);
  EXPECT_EQ(c.rope_scaling.factor, 32);
  EXPECT_EQ(c.rope_scaling.original_max_positions, 4096);
  EXPECT_FALSE(c.rope_scaling.truncate);
  EXPECT_DOUBLE_EQ(c.rope_scaling.attention_factor, 0.1 * std::log(32.0) + 1);
  EXPECT_EQ(c.max_context_len, 131072);
}

TEST(GptOssConfig, APlainRopeStaysPlainWhenItIsWrittenAndReadAgain) {
  Json json = SmallGptOss();
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  json["layer_types"] = {"full_attention", "sliding_attention", "full_attention"};
  json["attention_bias"] = false;
  const ModelConfig first = ParseGptOss(json);
  EXPECT_EQ(first.rope_scaling.kind, RopeKind::kPlain);
  const FamilySpec& family = FindFamilyByName("gpt_oss");
  const ModelConfig again = ParseGptOss(family.write_config(first));
  EXPECT_EQ(again.rope_scaling.kind, RopeKind::kPlain);
  EXPECT_EQ(again.rope_theta, 10000);
  EXPECT_EQ(again.windowed_layers, first.windowed_layers);
  EXPECT_FALSE(again.attention_bias);
  EXPECT_EQ(family.write_config(again), family.write_config(first));
}

TEST(GptOssConfig, WhatIsNotComputedIsRefusedByItsKey) {
  EXPECT_NE(FaultOfGptOss("swiglu_limit", 5.0, ErrorCode::kUnsupported).find("'swiglu_limit'"),
            std::string::npos);
  EXPECT_NE(FaultOfGptOss("swiglu_alpha", 1.0, ErrorCode::kUnsupported).find("'swiglu_alpha'"),
            std::string::npos);
  EXPECT_NE(
      FaultOfGptOss("num_experts_per_tok", 7, ErrorCode::kDataLoss).find("'num_experts_per_tok'"),
      std::string::npos);
  EXPECT_NE(FaultOfGptOss("layer_types", Json::array({"full_attention"}), ErrorCode::kDataLoss)
                .find("'layer_types'"),
            std::string::npos);
  const Json unknown = {"full_attention", "linear_attention", "full_attention"};
  EXPECT_NE(FaultOfGptOss("layer_types", unknown, ErrorCode::kUnsupported).find("linear_attention"),
            std::string::npos);
  EXPECT_EQ(FaultOfGptOss("swiglu_limit", 7, ErrorCode::kUnsupported), "");
}

// A checkpoint stores the experts of a layer in one tensor, gate and up rows in turn.
TEST(GptOssWeights, ExpertsNameTheirPlacesInTheStackedTensors) {
  const ModelConfig c = ParseGptOss(SmallGptOss());
  int found = 0;
  for (const WeightSpec& spec : FindFamilyByName("gpt_oss").list_weights(c)) {
    if (spec.name != "model.layers.1.mlp.experts.4.up_proj.weight") continue;
    ++found;
    ASSERT_EQ(spec.parts.size(), 2u);
    EXPECT_EQ(spec.parts[0].tensor, "model.layers.1.mlp.experts.gate_up_proj");
    EXPECT_EQ(spec.parts[0].index, 4);
    EXPECT_EQ(spec.parts[0].first_row, 1);
    EXPECT_EQ(spec.parts[0].row_step, 2);
    EXPECT_TRUE(spec.parts[0].transposed);
    EXPECT_EQ(spec.parts[1].tensor, "model.layers.1.mlp.experts.gate_up_proj_blocks");
    EXPECT_FALSE(spec.parts[1].transposed);
  }
  EXPECT_EQ(found, 1);
}

}  // namespace
}  // namespace tandem::engine
