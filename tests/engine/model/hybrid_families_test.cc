#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/model/families/family.h"
#include "engine/model/plan_ops.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

Json HybridJson(const char* family) {
  return FindFamilyByName(family).write_config(bench::TinyModelConfig(family));
}

// The message with which a config is refused; empty if it is accepted.
std::string HybridRefusal(const char* family, const Json& changes) {
  Json json = HybridJson(family);
  json.update(changes);
  try {
    FindFamily(json, "config.json").parse_config(json, "config.json");
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(HybridConfigs, ContradictionsAreRefusedNamingTheField) {
  struct Change {
    const char* family;
    Json changes;
    const char* field;
  };
  const std::vector<Change> changes = {
      {"mamba2", {{"num_heads", 7}}, "num_heads"},
      {"mamba2", {{"num_heads", -8}}, "num_heads"},
      {"mamba2", {{"n_groups", 3}}, "n_groups"},
      {"mamba2", {{"n_groups", 0}}, "n_groups"},
      {"mamba2", {{"state_size", 1 << 20}}, "state_size"},
      {"mamba2", {{"conv_kernel", 17}}, "conv_kernel"},
      {"mamba2", {{"expand", 0}}, "expand"},
      {"mamba2", {{"hidden_act", "gelu"}}, "hidden_act"},
      {"mamba2", {{"time_step_limit", {0.5, 0.1}}}, "time_step_limit"},
      {"mamba2", {{"time_step_limit", {"x", "y"}}}, "time_step_limit"},
      {"mamba2", {{"time_step_limit", 3}}, "time_step_limit"},
      {"falcon_h1", {{"mamba_d_ssm", 95}}, "mamba_d_ssm"},
      {"falcon_h1", {{"mlp_multipliers", {1.0}}}, "mlp_multipliers"},
      {"falcon_h1", {{"ssm_multipliers", {1, 1, 1, 1, "x"}}}, "ssm_multipliers"},
      {"falcon_h1", {{"key_multiplier", "x"}}, "key_multiplier"},
      {"falcon_h1", {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor"},
      {"bamba", {{"attn_layer_indices", {3}}}, "attn_layer_indices"},
      {"bamba", {{"attn_layer_indices", "all"}}, "attn_layer_indices"},
      {"bamba", {{"mamba_n_groups", 3}}, "mamba_n_groups"},
      {"granitemoehybrid", {{"mamba_n_groups", 3}}, "mamba_n_groups"},
      {"nemotron_h", {{"layers_block_type", {"mlp", "conv"}}}, "layers_block_type"},
      {"nemotron_h", {{"layers_block_type", Json::array()}}, "layers_block_type"},
      {"nemotron_h", {{"layers_block_type", 4}}, "layers_block_type"},
      {"nemotron_h", {{"sliding_window", 8}}, "sliding_window"},
      {"nemotron_h", {{"n_group", 3}}, "n_group"},
      {"nemotron_h", {{"moe_latent_size", -1}}, "moe_latent_size"},
      {"nemotron_h", {{"mamba_hidden_act", "relu"}}, "mamba_hidden_act"},
      {"llama4", {{"layer_types", {"chunked_attention"}}}, "layer_types"},
      {"llama4",
       {{"layer_types", {"full_attention", "full_attention", "mamba", "full_attention"}}},
       "layer_types"},
      {"llama4", {{"no_rope_layers", {1, 0}}}, "no_rope_layers"},
      {"llama4", {{"no_rope_layers", {1, 0, 2, 1}}}, "no_rope_layers"},
      {"llama4", {{"moe_layers", {4}}}, "moe_layers"},
      {"llama4", {{"attention_chunk_size", nullptr}}, "attention_chunk_size"},
      {"llama4", {{"attention_chunk_size", 24}}, "attention_chunk_size"},
      {"llama4", {{"attention_chunk_size", 0}}, "attention_chunk_size"},
      {"llama4", {{"num_experts_per_tok", 21}}, "num_experts_per_tok"},
      {"llama4", {{"floor_scale", 0}}, "floor_scale"},
      {"llama4", {{"text_config", 3}}, "text_config"},
  };
  for (const Change& change : changes) {
    const std::string refusal = HybridRefusal(change.family, change.changes);
    EXPECT_NE(refusal.find(change.field), std::string::npos)
        << change.family << " " << change.changes.dump() << ": " << refusal;
    EXPECT_TRUE(refusal.starts_with("config.json")) << refusal;
  }
}

TEST(HybridConfigs, APatternOfLettersNamesTheSameLayersAsAList) {
  Json json = HybridJson("nemotron_h");
  const FamilySpec& family = FindFamilyByName("nemotron_h");
  const Json listed = family.write_config(family.parse_config(json, "config.json"));
  json.erase("layers_block_type");
  json["hybrid_override_pattern"] = "ME*-";
  EXPECT_EQ(family.write_config(family.parse_config(json, "config.json")), listed);
  json["hybrid_override_pattern"] = "MX";
  EXPECT_THROW(family.parse_config(json, "config.json"), Error);
}

TEST(HybridConfigs, AnInfiniteTimeStepIsNoLimit) {
  const FamilySpec& family = FindFamilyByName("mamba2");
  Json json = HybridJson("mamba2");
  json["time_step_limit"] = {0.0, {{"__float__", "Infinity"}}};
  EXPECT_GT(family.parse_config(json, "config.json").recurrent.scan.most_dt, 3e38f);
}

TEST(HybridPlans, AModelOfStatesAloneKeepsNoKeys) {
  const ModelConfig config = bench::TinyModelConfig("mamba2");
  const FamilySpec& family = FindFamilyByName("mamba2");
  const ForwardPlan plan = PlanForward(family, config, family.list_weights(config), DType::kBF16);
  EXPECT_TRUE(plan.kv_layers.empty());
  EXPECT_GE(plan.state_floats, config.n_layers * config.recurrent.scan.state_floats());
}

}  // namespace
}  // namespace tandem::engine
