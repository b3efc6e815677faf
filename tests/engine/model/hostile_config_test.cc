// config.json of every family with one damaged value: it is refused by name in one line, or the
// result keeps the bounds that protect allocations and divisions.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/plan_ops.h"

namespace tandem::engine {
namespace {

using HostileJson = nlohmann::ordered_json;

// The message with which a family refuses a config; empty if it takes it.
std::string RefusalBy(const FamilySpec& family, const HostileJson& json) {
  try {
    const ModelConfig config = family.parse_config(json, "config.json");
    EXPECT_LE(config.n_layers, kMaxLayers);
    EXPECT_LE(config.hidden_dim, kMaxWidth);
    EXPECT_LE(config.vocab_size, kMaxVocab);
    EXPECT_LE(config.experts.router.n_experts * config.n_layers, kMaxExpertsOfModel);
    for (const RopeSpec& rope : FamilyRopes(family, config)) {
      EXPECT_TRUE(std::isfinite(rope.amplitude));
      for (const double frequency : rope.frequencies) EXPECT_TRUE(std::isfinite(frequency));
    }
    if (config.n_layers > 64 || config.experts.router.n_experts > 512) return "";
    const std::vector<WeightSpec> specs = family.list_weights(config);
    for (const WeightSpec& spec : specs) EXPECT_GE(ElementCount(spec.source_shape), 1) << spec.name;
    EXPECT_GE(PlanForward(family, config, specs, DType::kBF16).arena_bytes_per_row, 0);
    return "";
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::kDataLoss || error.code() == ErrorCode::kUnsupported)
        << error.what();
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with("config.json")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 1000u) << message;
    return message;
  }
}

HostileJson TinyJson(const FamilySpec& family) {
  return family.write_config(bench::TinyModelConfig(family.name));
}

TEST(HostileConfigs, EveryValueOfEveryFamilyIsRefusedOrHarmless) {
  const std::vector<HostileJson> values = {0,
                                           -1,
                                           1,
                                           3,
                                           1 << 18,
                                           int64_t{1} << 31,
                                           INT64_MAX,
                                           INT64_MIN,
                                           0.5,
                                           1e-30,
                                           1e308,
                                           true,
                                           nullptr,
                                           "a\nb",
                                           HostileJson::array(),
                                           HostileJson::array({0, -1, "x"}),
                                           HostileJson::object(),
                                           {{"rope_type", "yarn"}, {"factor", 2}}};
  for (const FamilySpec* family : Families()) {
    const HostileJson tiny = TinyJson(*family);
    ASSERT_EQ(RefusalBy(*family, tiny), "") << family->name;
    for (const auto& [key, old] : tiny.items()) {
      for (const HostileJson& value : values) {
        SCOPED_TRACE(std::string(family->name) + " " + key + " " + value.dump());
        HostileJson damaged = tiny;
        damaged[key] = value;
        RefusalBy(*family, damaged);
      }
    }
  }
}

// YaRN divides by the logarithm of theta. gpt-oss has YaRN where its file names no scaling.
TEST(HostileConfigs, YarnWithoutABaseIsRefusedByTheta) {
  const HostileJson yarn = {
      {"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 64}};
  for (const char* name : {"llama", "qwen3", "gpt_oss", "deepseek_v3"}) {
    HostileJson damaged = TinyJson(FindFamilyByName(name));
    damaged.erase("rope_parameters");
    damaged["rope_theta"] = 1;
    damaged["rope_scaling"] = yarn;
    const std::string refusal = RefusalBy(FindFamilyByName(name), damaged);
    EXPECT_NE(refusal.find("'rope_theta'"), std::string::npos) << name << ": " << refusal;
    damaged["rope_theta"] = 1.0000000000000002;
    EXPECT_EQ(RefusalBy(FindFamilyByName(name), damaged), "") << name;
  }
  HostileJson absent = TinyJson(FindFamilyByName("gpt_oss"));
  absent.erase("rope_parameters");
  absent.update({{"rope_theta", 1}, {"rope_scaling", nullptr}});
  const std::string refusal = RefusalBy(FindFamilyByName("gpt_oss"), absent);
  EXPECT_NE(refusal.find("'rope_theta'"), std::string::npos) << refusal;
}

// An object where a number belongs cannot be a default.
TEST(HostileConfigs, AnObjectInPlaceOfAnyNumberIsRefusedByItsKey) {
  for (const FamilySpec* family : Families()) {
    const HostileJson tiny = TinyJson(*family);
    for (const char* key :
         {"vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
          "head_dim", "num_experts", "num_local_experts", "num_experts_per_tok",
          "moe_intermediate_size", "n_group", "topk_group", "tie_word_embeddings"}) {
      if (!tiny.contains(key)) continue;
      HostileJson damaged = tiny;
      damaged[key] = {{"x", 1}};
      EXPECT_NE(RefusalBy(*family, damaged).find(key), std::string::npos)
          << family->name << " " << key << ": " << RefusalBy(*family, damaged);
    }
  }
}

TEST(HostileConfigs, ListsByLayerOfAnotherLengthOrWithUnknownNamesAreRefusedByTheirKey) {
  int lists = 0;
  for (const FamilySpec* family : Families()) {
    const ModelConfig config = bench::TinyModelConfig(family->name);
    const HostileJson tiny = TinyJson(*family);
    for (const char* key : {"layer_types", "layers_block_type", "no_rope_layers"}) {
      const auto list = tiny.find(key);
      if (list == tiny.end() || !list->is_array() || list->empty()) continue;
      if (static_cast<int64_t>(list->size()) != config.n_layers) continue;
      ++lists;
      HostileJson longer = tiny, unknown = tiny;
      longer[key].push_back(longer[key].back());
      unknown[key].back() = "no_such_layer";
      for (const HostileJson& damaged : {longer, unknown}) {
        const std::string refusal = RefusalBy(*family, damaged);
        EXPECT_NE(refusal.find(key), std::string::npos)
            << family->name << " " << key << ": " << refusal;
      }
      HostileJson shorter = tiny;
      shorter[key].erase(shorter[key].size() - 1);
      EXPECT_NE(RefusalBy(*family, shorter).find(key), std::string::npos) << family->name << key;
    }
  }
  EXPECT_GE(lists, 15);
}

TEST(HostileConfigs, AListOfLayersCannotNameALayerThatDoesNotExist) {
  const std::vector<std::pair<const char*, const char*>> lists = {
      {"bamba", "attn_layer_indices"}, {"lfm2", "full_attn_idxs"}, {"llama4", "moe_layers"}};
  for (const auto& [name, key] : lists) {
    const FamilySpec& family = FindFamilyByName(name);
    for (const int64_t layer : {bench::TinyModelConfig(name).n_layers, int64_t{-1}}) {
      HostileJson damaged = TinyJson(family);
      damaged.erase("layer_types");
      damaged[key] = {0, layer};
      EXPECT_NE(RefusalBy(family, damaged).find(key), std::string::npos)
          << name << ": " << RefusalBy(family, damaged);
    }
  }
}

TEST(HostileConfigs, FieldsThatContradictEachOtherAreNamedTogether) {
  const auto expect = [](const char* name, const HostileJson& changes,
                         const std::vector<std::string>& parts) {
    const FamilySpec& family = FindFamilyByName(name);
    HostileJson damaged = TinyJson(family);
    damaged.update(changes);
    const std::string refusal = RefusalBy(family, damaged);
    for (const std::string& part : parts) {
      EXPECT_NE(refusal.find(part), std::string::npos) << name << ": " << refusal;
    }
  };
  const HostileJson blocks = {"linear_attention", "moe", "full_attention", "mlp"};
  HostileJson agree = TinyJson(FindFamilyByName("nemotron_h"));
  agree.update({{"layers_block_type", blocks}, {"hybrid_override_pattern", "ME*-"}});
  EXPECT_EQ(RefusalBy(FindFamilyByName("nemotron_h"), agree), "");
  expect("nemotron_h", {{"layers_block_type", blocks}, {"hybrid_override_pattern", "ME-*"}},
         {"'layers_block_type'", "'hybrid_override_pattern'"});
  expect("nemotron_h", {{"layers_block_type", blocks}, {"layer_types", {"mlp"}}},
         {"'layers_block_type'", "'layer_types'"});
  expect("nemotron_h", {{"layers_block_type", blocks}, {"num_hidden_layers", 5}},
         {"'num_hidden_layers'", "'layers_block_type'"});
  const HostileJson types = TinyJson(FindFamilyByName("lfm2"))["layer_types"];
  const auto attends = std::find(types.begin(), types.end(), "full_attention") - types.begin();
  const auto other = attends == 0 ? 1 : 0;
  expect("lfm2", {{"full_attn_idxs", {other}}},
         {"'layer_types'", "'full_attn_idxs'",
          "layer " + std::to_string(std::min(attends, decltype(attends){other}))});
  int windowed = 0;
  for (const FamilySpec* family : Families()) {
    const HostileJson tiny = TinyJson(*family);
    if (!tiny.contains("layer_types") || !tiny.contains("sliding_window")) continue;
    if (tiny["layer_types"].dump().find("sliding_attention") == std::string::npos) continue;
    ++windowed;
    expect(family->name.data(), {{"sliding_window", nullptr}}, {"sliding_window"});
  }
  EXPECT_GE(windowed, 5);
}

TEST(HostileConfigs, ARouterCannotChooseMoreExpertsThanThereAre) {
  int routers = 0;
  for (const FamilySpec* family : Families()) {
    const ModelConfig config = bench::TinyModelConfig(family->name);
    const HostileJson tiny = TinyJson(*family);
    for (const char* key : {"num_experts_per_tok", "moe_k", "moe_topk"}) {
      if (config.experts.router.n_experts == 0 || !tiny.contains(key)) continue;
      ++routers;
      HostileJson damaged = tiny;
      damaged[key] = config.experts.router.n_experts + 1;
      EXPECT_NE(RefusalBy(*family, damaged).find(key), std::string::npos)
          << family->name << ": " << RefusalBy(*family, damaged);
    }
  }
  EXPECT_GE(routers, 10);
}

TEST(HostileConfigs, ExpertsOfAllLayersAreBoundedTogether) {
  HostileJson json = TinyJson(FindFamilyByName("qwen3_moe"));
  json.update({{"num_experts", 1024}, {"num_hidden_layers", 1024}, {"mlp_only_layers", nullptr}});
  const std::string refusal = RefusalBy(FindFamilyByName("qwen3_moe"), json);
  EXPECT_NE(refusal.find("'num_experts' is 1024"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("num_hidden_layers"), std::string::npos) << refusal;
}

}  // namespace
}  // namespace tandem::engine
