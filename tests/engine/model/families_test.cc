#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "engine/model/families/family.h"
#include "tests/support/golden.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

ModelConfig Parse(const Json& json) {
  return FindFamily(json, "config.json").parse_config(json, "config.json");
}

// The message of the Error from parsing; empty without an error.
std::string Fault(const Json& json, ErrorCode expected) {
  try {
    Parse(json);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), expected) << error.what();
    return error.what();
  }
}

Json LlamaJson() {
  return Json::parse(R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 256,
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4})");
}

Json MiniGptJson() {
  return Json::parse(R"({"model_type": "minigpt", "vocab_size": 256, "maxlen": 64,
    "embed_dim": 48, "num_heads": 4, "feed_forward_dim": 48, "num_transformer_blocks": 3})");
}

Json With(Json json, const char* field, const Json& value) {
  json[field] = value;
  return json;
}

bool Same(const ModelConfig& a, const ModelConfig& b) {
  const FamilySpec& family = FindFamilyByName(a.family);
  return a.family == b.family && family.write_config(a) == family.write_config(b) &&
         a.norm_eps == b.norm_eps && a.attention.scale == b.attention.scale &&
         a.attention.window == b.attention.window && a.attention.soft_cap == b.attention.soft_cap &&
         a.logit_cap == b.logit_cap && a.windowed_layers == b.windowed_layers &&
         a.attention_bias == b.attention_bias && a.tied_embeddings == b.tied_embeddings &&
         a.local_rope_theta == b.local_rope_theta && a.dropout == b.dropout &&
         a.activation == b.activation;
}

TEST(LlamaConfig, AbsentKeysHaveTheDefaultsOfTransformers) {
  const ModelConfig c = Parse(Json{{"model_type", "llama"}});

  EXPECT_EQ(c.vocab_size, 32000);
  EXPECT_EQ(c.hidden_dim, 4096);
  EXPECT_EQ(c.ffn_dim, 11008);
  EXPECT_EQ(c.n_layers, 32);
  EXPECT_EQ(c.attention.n_heads, 32);
  EXPECT_EQ(c.attention.n_kv_heads, 32);
  EXPECT_EQ(c.attention.head_dim, 128);
  EXPECT_EQ(c.max_context_len, 2048);
  EXPECT_EQ(c.norm_eps, 1e-6f);
  EXPECT_EQ(c.rope_theta, 10000);
  EXPECT_EQ(c.bos_token, 1);
  EXPECT_EQ(c.eos_tokens, std::vector<TokenId>{2});
  EXPECT_FALSE(c.tied_embeddings);
}

TEST(LlamaConfig, NullMeansAbsentAndHeadDimMayDifferFromWidth) {
  Json json = With(LlamaJson(), "head_dim", nullptr);
  EXPECT_EQ(Parse(json).attention.head_dim, 12);

  json["head_dim"] = 16;
  json["num_key_value_heads"] = 2;
  const ModelConfig c = Parse(json);

  EXPECT_EQ(c.attention.head_dim, 16);
  EXPECT_EQ(c.attention.n_kv_heads, 2);
  EXPECT_EQ(c.attention.scale, 0.25f);
}

TEST(LlamaConfig, EndTokensAreAnIntAListOrNothing) {
  EXPECT_EQ(Parse(With(LlamaJson(), "eos_token_id", 7)).eos_tokens, std::vector<TokenId>{7});
  EXPECT_EQ(Parse(With(LlamaJson(), "eos_token_id", {2, 0})).eos_tokens,
            (std::vector<TokenId>{2, 0}));
  EXPECT_TRUE(Parse(With(LlamaJson(), "eos_token_id", nullptr)).eos_tokens.empty());
}

TEST(LlamaConfig, BothWaysToWriteRopeMeanTheSame) {
  const Json llama3{{"rope_type", "llama3"},
                    {"factor", 8.0},
                    {"low_freq_factor", 1.0},
                    {"high_freq_factor", 4.0},
                    {"original_max_position_embeddings", 64}};
  Json old_way = With(LlamaJson(), "rope_scaling", llama3);
  old_way["rope_theta"] = 500000.0;
  const Json new_way = With(LlamaJson(), "rope_parameters", With(llama3, "rope_theta", 500000.0));
  Json oldest_way = old_way;
  oldest_way["rope_scaling"].erase("rope_type");
  oldest_way["rope_scaling"]["type"] = "llama3";

  const ModelConfig c = Parse(old_way);

  EXPECT_EQ(c.rope_theta, 500000);
  EXPECT_EQ(c.rope_scaling.factor, 8);
  EXPECT_EQ(c.rope_scaling.original_max_positions, 64);
  EXPECT_TRUE(Same(c, Parse(new_way)));
  EXPECT_TRUE(Same(c, Parse(oldest_way)));
  EXPECT_EQ(Parse(With(LlamaJson(), "rope_parameters", {{"rope_type", "default"}})).rope_theta,
            10000);
}

TEST(LlamaConfig, RopeScalingSlowsLongWavesKeepsShortOnesAndBlendsBetween) {
  ModelConfig c = bench::TinyLlamaConfig();
  c.attention.head_dim = 16;
  const FamilySpec& family = FindFamilyByName("llama");
  const std::vector<double> plain = family.list_ropes(c).at(0).frequencies;
  c.rope_scaling = {.kind = RopeKind::kLlama3, .factor = 8, .original_max_positions = 64};

  const std::vector<double> scaled = family.list_ropes(c).at(0).frequencies;

  EXPECT_EQ(plain[0], 1);
  EXPECT_DOUBLE_EQ(plain[4], 0.01);
  EXPECT_EQ(scaled[0], plain[0]) << "64 / 2pi turns in the old context: kept";
  EXPECT_DOUBLE_EQ(scaled[7], plain[7] / 8) << "less than one turn: slowed";
  EXPECT_GT(scaled[1], plain[1] / 8);
  EXPECT_LT(scaled[1], plain[1]) << "3.2 turns: between";
}

TEST(LlamaConfig, LinearScalingSlowsEveryWave) {
  const ModelConfig plain = Parse(LlamaJson());
  const ModelConfig scaled =
      Parse(With(LlamaJson(), "rope_scaling", {{"rope_type", "linear"}, {"factor", 4}}));
  const FamilySpec& family = FindFamilyByName("llama");

  const RopeSpec before = family.list_ropes(plain).at(0), after = family.list_ropes(scaled).at(0);

  ASSERT_EQ(after.frequencies.size(), 6u);
  EXPECT_EQ(after.amplitude, 1);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_DOUBLE_EQ(after.frequencies[i], before.frequencies[i] / 4);
  }
}

// The frequencies of transformers' _compute_yarn_parameters for these keys.
TEST(LlamaConfig, YarnKeepsFastWavesSlowsSlowOnesAndStretchesTheContext) {
  Json json = With(LlamaJson(), "head_dim", 16);
  json["rope_theta"] = 10000.0;
  json["max_position_embeddings"] = 512;
  json["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}};
  const ModelConfig c = Parse(json);
  const RopeSpec rope = FindFamilyByName("llama").list_ropes(c).at(0);

  EXPECT_EQ(c.max_context_len, 2048);
  EXPECT_DOUBLE_EQ(rope.amplitude, 0.1 * std::log(4.0) + 1);
  const std::vector<double> expected = {
      1.0,    0.2569350598886808,   0.0625,  0.01383496476323666,
      0.0025, 0.000790569415042095, 0.00025, 7.905694150420948e-05};
  ASSERT_EQ(rope.frequencies.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(rope.frequencies[i], expected[i], 1e-6 * expected[i]);
  }
  json["rope_scaling"]["attention_factor"] = 1.5;
  EXPECT_EQ(FindFamilyByName("llama").list_ropes(Parse(json)).at(0).amplitude, 1.5);
}

TEST(LlamaConfig, BiasesAreListedWhereTheConfigHasThem) {
  const auto count = [](const Json& json) {
    return FindFamilyByName("llama").list_weights(Parse(json)).size();
  };

  EXPECT_EQ(count(With(LlamaJson(), "attention_bias", true)), count(LlamaJson()) + 2 * 4);
  EXPECT_EQ(count(With(LlamaJson(), "mlp_bias", true)), count(LlamaJson()) + 2 * 3);
}

TEST(LlamaConfig, WhatWeDoNotComputeIsRefusedByName) {
  const auto unsupported = [](const char* field, const Json& value) {
    return Fault(With(LlamaJson(), field, value), ErrorCode::kUnsupported);
  };

  EXPECT_NE(unsupported("hidden_act", "quick_gelu").find("'quick_gelu'"), std::string::npos);
  EXPECT_NE(unsupported("rope_scaling", {{"type", "dynamic"}, {"factor", 2}})
                .find("'dynamic'; supported are 'default', 'linear', 'llama3' and 'yarn'"),
            std::string::npos);
  EXPECT_NE(unsupported("rope_parameters", {{"rope_type", "longrope"}}).find("'longrope'"),
            std::string::npos);
  EXPECT_NE(unsupported("partial_rotary_factor", 0.5).find("partial_rotary_factor"),
            std::string::npos);
}

TEST(LlamaConfig, HostileNumbersAreRefusedNamingTheField) {
  const struct {
    const char* field;
    Json value;
  } cases[] = {
      {"vocab_size", -1},
      {"vocab_size", 1e300},
      {"hidden_size", 0},
      {"hidden_size", 1LL << 40},
      {"hidden_size", "48"},
      {"intermediate_size", 9223372036854775807},
      {"num_hidden_layers", 1'000'000'000},
      {"num_attention_heads", 0},
      {"num_key_value_heads", 3},
      {"num_key_value_heads", 8},
      {"head_dim", 13},
      {"head_dim", 1 << 20},
      {"max_position_embeddings", 1LL << 60},
      {"rms_norm_eps", -1},
      {"rope_theta", 0},
      {"rope_scaling", 3},
      {"eos_token_id", 256},
      {"eos_token_id", Json::array({1, "x"})},
      {"eos_token_id", std::vector<int>(100, 1)},
      {"tie_word_embeddings", "yes"},
  };
  for (const auto& [field, value] : cases) {
    const std::string fault = Fault(With(LlamaJson(), field, value), ErrorCode::kDataLoss);
    EXPECT_NE(fault.find(field), std::string::npos) << field << " = " << value << ": " << fault;
    EXPECT_EQ(fault.find("config.json"), 0u) << fault;
  }
  Json scaling = With(LlamaJson(), "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}});
  EXPECT_NE(Fault(scaling, ErrorCode::kDataLoss).find("low_freq_factor"), std::string::npos);
  scaling["rope_scaling"].update(Json{
      {"low_freq_factor", 4}, {"high_freq_factor", 4}, {"original_max_position_embeddings", 64}});
  EXPECT_NE(Fault(scaling, ErrorCode::kDataLoss).find("high_freq_factor"), std::string::npos);
}

TEST(MiniGptConfig, ReadsItsKeys) {
  const ModelConfig c = Parse(With(MiniGptJson(), "dropout_rate", 0.25));

  EXPECT_EQ(c.family, "minigpt");
  EXPECT_EQ(c.max_context_len, 64);
  EXPECT_EQ(c.attention.n_heads, 4);
  EXPECT_EQ(c.attention.n_kv_heads, 4);
  EXPECT_EQ(c.attention.head_dim, 12);
  EXPECT_EQ(c.n_layers, 3);
  EXPECT_EQ(c.norm_eps, 1e-6f);
  EXPECT_EQ(c.dropout, 0.25f);
  EXPECT_EQ(c.activation, Activation::kRelu);
  EXPECT_EQ(c.bos_token, -1);
  EXPECT_TRUE(c.eos_tokens.empty());
}

TEST(MiniGptConfig, HostileNumbersAreRefusedNamingTheField) {
  for (const char* field : {"vocab_size", "maxlen", "embed_dim", "num_heads", "feed_forward_dim",
                            "num_transformer_blocks"}) {
    Json missing = MiniGptJson();
    missing.erase(field);
    EXPECT_NE(Fault(missing, ErrorCode::kDataLoss).find(field), std::string::npos);
    for (const Json& value : {Json(0), Json(-5), Json(1LL << 50), Json("many")}) {
      const std::string fault = Fault(With(MiniGptJson(), field, value), ErrorCode::kDataLoss);
      EXPECT_NE(fault.find(field), std::string::npos) << field << " = " << value << ": " << fault;
    }
  }
  EXPECT_NE(Fault(With(MiniGptJson(), "num_heads", 5), ErrorCode::kDataLoss).find("num_heads"),
            std::string::npos);
  EXPECT_NE(Fault(With(MiniGptJson(), "dropout_rate", 1), ErrorCode::kDataLoss).find("dropout"),
            std::string::npos);
}

TEST(MiniGptConfig, ThePresetOfTheTutorialHasItsParameterCount) {
  Json json = MiniGptJson();
  json.update(Json{{"vocab_size", 50257},
                   {"maxlen", 256},
                   {"embed_dim", 256},
                   {"num_heads", 8},
                   {"feed_forward_dim", 256},
                   {"num_transformer_blocks", 4}});
  int64_t count = 0;
  for (const WeightSpec& spec : FindFamilyByName("minigpt").list_weights(Parse(json))) {
    EXPECT_EQ(spec.n * spec.k, ElementCount(spec.source_shape)) << spec.name;
    count += spec.n * spec.k;
  }

  EXPECT_EQ(count, 27430481);
}

Json OfType(const char* model_type) { return Json{{"model_type", model_type}}; }

// Defaults of transformers' classes, for keys that real files omit.
TEST(MistralConfig, AbsentKeysHaveTheDefaultsOfTransformers) {
  const ModelConfig c = Parse(OfType("mistral"));

  EXPECT_EQ(c.ffn_dim, 14336);
  EXPECT_EQ(c.attention.n_kv_heads, 8);
  EXPECT_EQ(c.attention.head_dim, 128);
  EXPECT_EQ(c.max_context_len, 131072);
  EXPECT_EQ(c.attention.window, 4096);
  EXPECT_EQ(c.LayerAttention(31).window, 4096);
  EXPECT_FALSE(c.tied_embeddings);
  EXPECT_EQ(Parse(With(OfType("mistral"), "sliding_window", nullptr)).attention.window, 0);
}

TEST(MistralConfig, HeadsMayBeNarrowerThanTheWidth) {
  Json json = With(OfType("mistral"), "hidden_size", 5120);  // Mistral NeMo
  json["head_dim"] = 128;
  EXPECT_EQ(Parse(json).attention.head_dim, 128);
  json["head_dim"] = nullptr;
  EXPECT_EQ(Parse(json).attention.head_dim, 160);
}

TEST(QwenConfig, AWindowCountsOnlyWhereItIsUsed) {
  for (const char* type : {"qwen2", "qwen3"}) {
    Json json = With(OfType(type), "sliding_window", 1000);
    json["num_hidden_layers"] = 6;
    json["max_window_layers"] = 4;
    EXPECT_EQ(Parse(json).attention.window, 0) << "use_sliding_window is false by default";

    json["use_sliding_window"] = true;
    const ModelConfig used = Parse(json);
    EXPECT_EQ(used.LayerAttention(3).window, 0);
    EXPECT_EQ(used.LayerAttention(4).window, 1000);

    json["layer_types"] = Json::array({"sliding_attention", "full_attention", "full_attention",
                                       "full_attention", "full_attention", "full_attention"});
    const ModelConfig listed = Parse(json);
    EXPECT_EQ(listed.LayerAttention(0).window, 1000);
    EXPECT_EQ(listed.LayerAttention(5).window, 0) << "layer_types decides where it is there";
  }
}

TEST(QwenConfig, BiasesAreThoseOfTheClass) {
  const auto has = [](const ModelConfig& c, const std::string& name) {
    for (const WeightSpec& spec : FindFamilyByName(c.family).list_weights(c)) {
      if (spec.name == name) return true;
    }
    return false;
  };
  const ModelConfig two = Parse(OfType("qwen2")), three = Parse(OfType("qwen3"));
  const ModelConfig biased = Parse(With(OfType("qwen3"), "attention_bias", true));

  EXPECT_TRUE(has(two, "model.layers.0.self_attn.k_proj.bias"));
  EXPECT_FALSE(has(two, "model.layers.0.self_attn.o_proj.bias"));
  EXPECT_FALSE(has(three, "model.layers.0.self_attn.k_proj.bias"));
  EXPECT_TRUE(has(biased, "model.layers.0.self_attn.o_proj.bias"));
  EXPECT_TRUE(has(three, "model.layers.0.self_attn.q_norm.weight"));
  EXPECT_EQ(three.attention.head_dim, 128);
}

TEST(GemmaConfig, AbsentKeysHaveTheDefaultsOfTransformers) {
  const ModelConfig one = Parse(OfType("gemma")), two = Parse(OfType("gemma2")),
                    three = Parse(OfType("gemma3_text"));

  for (const ModelConfig& c : {one, two, three}) {
    EXPECT_EQ(c.attention.head_dim, 256) << c.family;
    EXPECT_EQ(c.activation, Activation::kGeluTanh) << c.family;
    EXPECT_TRUE(c.tied_embeddings) << c.family;
    EXPECT_EQ(c.attention.scale, 0.0625f) << c.family;
  }
  EXPECT_EQ(two.attention.soft_cap, 50);
  EXPECT_EQ(two.logit_cap, 30);
  EXPECT_EQ(two.LayerAttention(0).window, 4096);
  EXPECT_EQ(two.LayerAttention(1).window, 0);
  EXPECT_EQ(three.attention.soft_cap, 0);
  EXPECT_EQ(three.logit_cap, 0);
  EXPECT_EQ(three.LayerAttention(4).window, 4096);
  EXPECT_EQ(three.LayerAttention(5).window, 0);
  EXPECT_EQ(three.rope_theta, 1000000);
  EXPECT_EQ(three.local_rope_theta, 10000);
}

TEST(GemmaConfig, GeluMeansItsTanhFormWhereTheFirstFilesSaySo) {
  Json json = With(OfType("gemma"), "hidden_act", "gelu");
  EXPECT_EQ(Parse(json).activation, Activation::kGeluTanh);
  json["hidden_activation"] = nullptr;
  EXPECT_EQ(Parse(json).activation, Activation::kGeluTanh);
  json["hidden_activation"] = "gelu";  // explicitly the exact form
  EXPECT_EQ(Parse(json).activation, Activation::kGelu);
}

TEST(Gemma2Config, QueryScalarAndCapsAreTheModels) {
  Json json = With(OfType("gemma2"), "query_pre_attn_scalar", 144);  // 27B
  json["head_dim"] = 128;
  EXPECT_FLOAT_EQ(Parse(json).attention.scale, 1.0f / 12);
  json["attn_logit_softcapping"] = nullptr;
  json["final_logit_softcapping"] = nullptr;
  EXPECT_EQ(Parse(json).attention.soft_cap, 0);
  EXPECT_EQ(Parse(json).logit_cap, 0);
  json["use_bidirectional_attention"] = true;
  EXPECT_NE(Fault(json, ErrorCode::kUnsupported).find("bidirectional"), std::string::npos);
}

TEST(Gemma3Config, RopesByLayerTypeMeanWhatTheOldKeysDo) {
  Json old_way =
      With(OfType("gemma3_text"), "rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}});
  old_way["rope_local_base_freq"] = 20000.0;
  Json new_way = OfType("gemma3_text");
  new_way["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1000000.0}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 20000.0}}}};

  const ModelConfig c = Parse(new_way);
  const std::vector<RopeSpec> ropes = FindFamilyByName("gemma3").list_ropes(c);

  EXPECT_TRUE(Same(c, Parse(old_way)));
  ASSERT_EQ(ropes.size(), 2u);
  EXPECT_DOUBLE_EQ(ropes[0].frequencies[0], 1.0 / 8);
  EXPECT_DOUBLE_EQ(ropes[1].frequencies[0], 1.0);
  EXPECT_DOUBLE_EQ(ropes[1].frequencies[64], std::pow(20000.0, -0.5));
}

TEST(Gemma3Config, OfAModelWithEyesTheTextPartIsRead) {
  Json json{
      {"architectures", {"Gemma3ForConditionalGeneration"}},
      {"model_type", "gemma3"},
      {"eos_token_id", {1, 106}},
      {"vision_config", {{"hidden_size", 1152}}},
      {"text_config", {{"model_type", "gemma3_text"}, {"hidden_size", 2560}, {"eos_token_id", 1}}}};
  const ModelConfig c = Parse(json);

  EXPECT_EQ(c.family, "gemma3");
  EXPECT_EQ(c.hidden_dim, 2560);
  EXPECT_EQ(c.vocab_size, 262208);
  EXPECT_EQ(c.eos_tokens, (std::vector<TokenId>{1, 106}));
  json["text_config"] = 3;
  EXPECT_NE(Fault(json, ErrorCode::kDataLoss).find("text_config"), std::string::npos);
}

TEST(LayerTypes, WhatTheyMayNotBeIsRefused) {
  Json json = With(OfType("gemma2"), "num_hidden_layers", 2);
  json["layer_types"] = {"full_attention"};
  EXPECT_NE(Fault(json, ErrorCode::kDataLoss).find("layer_types"), std::string::npos);
  json["layer_types"] = {"full_attention", "chunked_attention"};
  EXPECT_NE(Fault(json, ErrorCode::kUnsupported).find("chunked_attention"), std::string::npos);
  json["layer_types"] = {"full_attention", 3};
  EXPECT_NE(Fault(json, ErrorCode::kDataLoss).find("layer_types"), std::string::npos);
  json["layer_types"] = {"full_attention", "sliding_attention"};
  json["sliding_window"] = nullptr;
  EXPECT_NE(Fault(json, ErrorCode::kDataLoss).find("sliding_window"), std::string::npos);
}

// A fuzzer found a line break in the name of a layer type.
TEST(Faults, AreOneLineWhateverTheFileSays) {
  Json layers = With(OfType("gemma2"), "num_hidden_layers", 1);
  layers["layer_types"] = {"full_att\ntion"};
  const Json rope = With(LlamaJson(), "rope_scaling", {{"rope_type", "ya\nrn"}});
  for (const Json& json : {layers, rope, With(LlamaJson(), "hidden_act", "si\nlu"),
                           With(LlamaJson(), "architectures", Json::array({"Lla\nma"}))}) {
    const std::string fault = Fault(json, ErrorCode::kUnsupported);
    EXPECT_NE(fault, "");
    EXPECT_EQ(fault.find('\n'), std::string::npos) << fault;
  }
}

TEST(Gpt2Config, AbsentKeysHaveTheDefaultsOfTransformers) {
  const ModelConfig c = Parse(OfType("gpt2"));

  EXPECT_EQ(c.vocab_size, 50257);
  EXPECT_EQ(c.hidden_dim, 768);
  EXPECT_EQ(c.ffn_dim, 3072);
  EXPECT_EQ(c.n_layers, 12);
  EXPECT_EQ(c.attention.head_dim, 64);
  EXPECT_EQ(c.max_context_len, 1024);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  EXPECT_EQ(c.dropout, 0.1f);
  EXPECT_EQ(c.embedding_dropout, 0.1f);
  EXPECT_EQ(c.eos_tokens, std::vector<TokenId>{50256});
  EXPECT_TRUE(c.tied_embeddings);
  int64_t count = 0;
  for (const WeightSpec& spec : FindFamilyByName("gpt2").list_weights(c)) count += spec.n * spec.k;
  EXPECT_EQ(count, 124439808) << "GPT-2's 124M";
}

TEST(Gpt2Config, WhatWeDoNotComputeIsRefusedByName) {
  for (const char* field : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    EXPECT_NE(Fault(With(OfType("gpt2"), field, true), ErrorCode::kUnsupported).find(field),
              std::string::npos);
  }
  EXPECT_NE(Fault(With(OfType("gpt2"), "n_head", 7), ErrorCode::kDataLoss).find("n_head"),
            std::string::npos);
  EXPECT_EQ(Parse(With(OfType("gpt2"), "scale_attn_weights", false)).attention.scale, 1);
}

TEST(Families, AWrittenConfigParsesBackToTheSame) {
  ModelConfig scaled = bench::Llama1BConfig();
  ModelConfig no_tokens = bench::TinyLlamaConfig();
  no_tokens.eos_tokens = {};
  no_tokens.bos_token = -1;
  no_tokens.norm_eps = 1e-5f;
  std::vector<ModelConfig> configs = {scaled, no_tokens, bench::Gemma2BConfig()};
  for (const FamilySpec* family : Families())
    configs.push_back(bench::TinyModelConfig(family->name));
  for (const std::string& name : tests::GoldenNames()) {
    configs.push_back(
        Parse(Json::parse(ReadWholeFile(tests::LoadGolden(name).dir / "config.json", 1 << 20))));
  }
  for (const ModelConfig& config : configs) {
    const Json written = FindFamilyByName(config.family).write_config(config);
    EXPECT_TRUE(Same(config, Parse(Json::parse(written.dump())))) << written;
  }
}

TEST(Families, ListedWeightsAreExactlyTheGoldenTensorsAndTheRightOnesDecay) {
  for (const std::string& name : tests::GoldenNames()) {
    const tests::Golden golden = tests::LoadGolden(name);
    const auto gradients = tests::OpenGoldenTensors(golden, "gradients");
    const Json json = Json::parse(ReadWholeFile(golden.dir / "config.json", 1 << 20));
    std::vector<std::string> decayed;
    size_t n_listed = 0;
    for (const WeightSpec& spec : FindFamily(json, name).list_weights(Parse(json))) {
      ++n_listed;
      const ConstTensorView* tensor = gradients.Find(spec.name);
      ASSERT_NE(tensor, nullptr) << spec.name;
      EXPECT_EQ(tensor->shape, spec.source_shape) << spec.name;
      if (spec.decays) decayed.push_back(spec.name);
    }
    std::sort(decayed.begin(), decayed.end());

    EXPECT_EQ(n_listed, gradients.names().size());
    EXPECT_EQ(decayed, golden.training.decayed_parameters);
  }
}

TEST(Families, AnUnknownArchitectureIsAnsweredWithTheKnownOnes) {
  const std::string fault =
      Fault(Json{{"architectures", {"LlamaForSequenceClassification"}}, {"model_type", "llama"}},
            ErrorCode::kUnsupported);

  EXPECT_NE(fault.find("LlamaForSequenceClassification"), std::string::npos);
  for (const FamilySpec* family : Families()) {
    EXPECT_NE(fault.find(family->architectures.front()), std::string::npos) << fault;
  }
  EXPECT_NE(Fault(Json::object(), ErrorCode::kUnsupported), "");
  EXPECT_NE(Fault(Json::array(), ErrorCode::kDataLoss), "");
  EXPECT_THROW(FindFamilyByName("gpt5"), Error);
}

}  // namespace
}  // namespace tandem::engine
