// Attention whose shape differs by layer, and the configs of families that have it.

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/model/adapter.h"
#include "engine/model/families/family.h"
#include "engine/model/plan_ops.h"

namespace tandem::engine {
namespace {

using OrderedJson = nlohmann::ordered_json;

ModelConfig ParseShape(const OrderedJson& json) {
  return FindFamily(json, "config.json").parse_config(json, "config.json");
}

std::string ShapeFault(const OrderedJson& json) {
  try {
    ParseShape(json);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

OrderedJson WithField(OrderedJson json, const char* field, const OrderedJson& value) {
  json[field] = value;
  return json;
}

OrderedJson TinyJson(const char* family) {
  const ModelConfig c = bench::TinyModelConfig(family);
  return FindFamilyByName(family).write_config(c);
}

ForwardPlan PlanOf(const char* name) {
  const FamilySpec& family = FindFamilyByName(name);
  const ModelConfig c = bench::TinyModelConfig(name);
  return PlanForward(family, c, family.list_weights(c), DType::kF32);
}

TEST(LayerShapes, LayersThatShareKeysKeepNoneInTheCache) {
  const ForwardPlan plan = PlanOf("gemma4");

  ASSERT_EQ(plan.kv_layers.size(), 3u) << "layers 3 and 4 of five share keys";
  EXPECT_EQ(plan.kv_layers[0].head_dim, 12);
  EXPECT_EQ(plan.kv_layers[1].head_dim, 20);
  EXPECT_EQ(plan.kv_layers[1].n_kv_heads, 1);
  int writes = 0, attentions = 0;
  for (const ForwardPlan::Op& op : plan.ops) {
    if (op.layer < 0) continue;
    ++attentions;
    writes += op.writes_keys ? 1 : 0;
  }
  EXPECT_EQ(attentions, 5);
  EXPECT_EQ(writes, 3);
}

TEST(LayerShapes, LatentAttentionKeepsExpandedKeysAndNarrowerValues) {
  for (const char* family : {"deepseek_v2", "deepseek_v3"}) {
    const ForwardPlan plan = PlanOf(family);

    ASSERT_EQ(plan.kv_layers.size(), 3u);
    EXPECT_EQ(plan.kv_layers[0].n_kv_heads, 4);
    EXPECT_EQ(plan.kv_layers[0].head_dim, 14);
    EXPECT_EQ(plan.kv_layers[0].value_dim(), 10);
  }
}

TEST(LayerShapes, Gemma4ReadsBothSpellingsOfItsFullHeads) {
  OrderedJson json = TinyJson("gemma4");
  const ModelConfig saved = ParseShape(json);
  json.erase("per_layer_config");
  const ModelConfig older = ParseShape(json);

  for (const ModelConfig& c : {saved, older}) {
    EXPECT_EQ(c.LayerAttention(1).head_dim, 20);
    EXPECT_EQ(c.LayerAttention(1).n_kv_heads, 1);
    EXPECT_EQ(c.LayerAttention(0).head_dim, 12);
  }
  json["attention_k_eq_v"] = false;
  EXPECT_EQ(ParseShape(json).LayerAttention(1).n_kv_heads, 2)
      << "num_global_key_value_heads counts only where values are keys";
}

// transformers writes "05" beside "11".
TEST(LayerShapes, Gemma4ReadsNumbersOfLayersPaddedWithZeros) {
  OrderedJson json = TinyJson("gemma4");
  const ModelConfig saved = ParseShape(json);
  OrderedJson padded = OrderedJson::object();
  for (const auto& [layer, heads] : json["per_layer_config"].items()) padded["0" + layer] = heads;
  json["per_layer_config"] = padded;

  EXPECT_EQ(ParseShape(json).LayerAttention(1).head_dim, saved.LayerAttention(1).head_dim);
  EXPECT_EQ(ParseShape(json).LayerAttention(1).n_kv_heads, 1);
}

TEST(LayerShapes, Gemma4ReadsTheTextPartOfAMultimodalConfig) {
  OrderedJson outer = {{"architectures", {"Gemma4ForConditionalGeneration"}},
                       {"text_config", TinyJson("gemma4")}};

  EXPECT_EQ(ParseShape(outer).family, "gemma4");
}

TEST(LayerShapes, Gemma4ConfigsThatContradictThemselvesNameTheField) {
  const OrderedJson json = TinyJson("gemma4");
  const struct {
    const char* field;
    OrderedJson value;
    const char* named;
  } cases[] = {
      {"num_kv_shared_layers", 5, "num_kv_shared_layers"},
      {"num_kv_shared_layers", 4, "num_kv_shared_layers"},  // leaves no full layer
      {"num_kv_shared_layers", -1, "num_kv_shared_layers"},
      {"layer_types", {"full_attention"}, "layer_types"},
      {"layer_types",
       {"full_attention", "full_attention", "full_attention", "full_attention",
        "sliding_attention"},
       "layer_types"},
      {"per_layer_config", {{"1", {{"head_dim", 7}}}}, "head_dim"},
      {"per_layer_config", {{"1", {{"head_dim", 16}}}}, "per_layer_config"},  // not layer 4
      {"per_layer_config", {{"1", {{"rank", 16}}}}, "rank"},
      {"per_layer_config", {{"0", {{"head_dim", 16}}}}, "per_layer_config"},
      {"per_layer_config", {{"9", {{"head_dim", 16}}}}, "has the key '9'"},
      {"per_layer_config", {{"1x", {{"head_dim", 16}}}}, "has the key '1x'"},
      {"per_layer_config",
       {{"1", {{"head_dim", 16}}}, {"01", {{"head_dim", 16}}}},
       "has the key '01'"},
      {"hidden_size_per_layer_input", int64_t{1} << 40, "hidden_size_per_layer_input"},
      {"vocab_size_per_layer_input", 0, "vocab_size_per_layer_input"},
      {"rope_parameters", {{"full_attention", 3}}, "rope_parameters"},
      {"rope_parameters", {{"sliding_attention", OrderedJson::object()}}, "full_attention"},
      {"num_experts", nullptr, "num_experts"},
      {"num_experts", 2, "top_k_experts"},  // of which three are chosen
      {"top_k_experts", 0, "top_k_experts"},
      {"moe_intermediate_size", nullptr, "moe_intermediate_size"},
      {"moe_intermediate_size", int64_t{1} << 40, "moe_intermediate_size"},
      {"use_bidirectional_attention", "all", "use_bidirectional_attention"},
  };
  for (const auto& one : cases) {
    const std::string fault = ShapeFault(WithField(json, one.field, one.value));
    EXPECT_NE(fault.find(one.named), std::string::npos) << one.field << ": " << fault;
  }
}

TEST(LayerShapes, Gemma3nConfigsThatContradictThemselvesNameTheField) {
  const OrderedJson json = TinyJson("gemma3n");
  const struct {
    const char* field;
    OrderedJson value;
  } cases[] = {
      {"num_kv_shared_layers", nullptr},  // 15 by default
      {"num_kv_shared_layers", 4},        // leaves no full layer
      {"intermediate_size", {90, 80}},
      {"intermediate_size", {90, 80, -3, 90, 90}},
      {"intermediate_size", {90, 80, nullptr, 90, 90}},
      {"layer_types",
       {"full_attention", "linear_attention", "full_attention", "full_attention",
        "full_attention"}},
      {"activation_sparsity_pattern", {0.5, 0.5}},
      {"activation_sparsity_pattern", {0.5, 1.0, 0, 0, 0}},
      {"activation_sparsity_pattern", {0.5, "all", 0, 0, 0}},
      {"activation_sparsity_pattern", 0.5},
      {"altup_num_inputs", 0},
      {"altup_num_inputs", 400},
      {"altup_active_idx", 3},
      {"altup_coef_clip", -1},
      {"altup_correct_scale", 1.5},
      {"laurel_rank", 0},
      {"use_bidirectional_attention", true},
      {"hidden_size_per_layer_input", 0},
      {"final_logit_softcapping", 0},
      {"text_config", 7},
  };
  for (const auto& one : cases) {
    const std::string fault = ShapeFault(WithField(json, one.field, one.value));
    EXPECT_NE(fault.find(one.field), std::string::npos) << one.field << ": " << fault;
  }
}

TEST(LayerShapes, RoutersAreTheirScalesToo) {
  const FamilySpec& family = FindFamilyByName("gemma4");
  const ModelConfig c = bench::TinyModelConfig("gemma4");
  const std::vector<WeightSpec> specs = family.list_weights(c);
  const std::vector<bool> routers = RouterWeights(family, c, specs);

  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(routers[i], specs[i].name.find(".router.") != std::string::npos) << specs[i].name;
  }
}

TEST(LayerShapes, LayersThatWeighStreamsStayInTheComputeType) {
  const std::vector<WeightSpec> specs =
      FindFamilyByName("gemma3n").list_weights(bench::TinyModelConfig("gemma3n"));
  std::set<std::string> exact;
  for (const int32_t weight : PlanOf("gemma3n").Routers()) {
    exact.insert(specs[static_cast<size_t>(weight)].name);
  }

  for (const WeightSpec& spec : specs) {
    const bool weighs =
        spec.kind == WeightKind::kMatrix && spec.name.find(".altup.") != std::string::npos;
    EXPECT_EQ(exact.contains(spec.name), weighs) << spec.name;
  }
}

TEST(LayerShapes, Gemma3nKeepsItsPartsInItsConfig) {
  const ModelConfig c = bench::TinyModelConfig("gemma3n");
  const ModelConfig read = ParseShape(TinyJson("gemma3n"));

  EXPECT_EQ(read.gemma.n_streams, 3);
  EXPECT_EQ(read.gemma.active_stream, 1);
  EXPECT_EQ(read.gemma.ffn_dims, c.gemma.ffn_dims);
  EXPECT_EQ(read.gemma.sparsity, c.gemma.sparsity);
  EXPECT_EQ(read.gemma.per_layer_vocab, c.gemma.per_layer_vocab);
  EXPECT_NEAR(read.gemma.cuts[4], 0.67448975, 1e-6) << "three quarters of a normal distribution";
}

TEST(LayerShapes, LatentConfigsThatContradictThemselvesNameTheField) {
  const struct {
    const char* family;
    const char* field;
    OrderedJson value;
  } cases[] = {
      {"deepseek_v2", "num_key_value_heads", 2},
      {"deepseek_v2", "qk_rope_head_dim", 5},
      {"deepseek_v2", "v_head_dim", 0},
      {"deepseek_v2", "kv_lora_rank", -3},
      {"deepseek_v2", "q_lora_rank", 0},
      {"deepseek_v2", "topk_group", 9},
      {"deepseek_v2", "topk_method", "noaux_tc"},
      {"deepseek_v2", "norm_topk_prob", true},
      {"deepseek_v2", "mlp_bias", true},
      {"deepseek_v2", "moe_layer_freq", 2},
      {"deepseek_v2", "num_experts_per_tok", nullptr},
      {"deepseek_v2", "n_shared_experts", 1000},
      {"deepseek_v3", "n_group", 3},
      {"deepseek_v3", "scoring_func", "softmax"},
      {"deepseek_v3", "num_experts_per_tok", 21},
      {"deepseek_v3", "first_k_dense_replace", -1},
  };
  for (const auto& one : cases) {
    const std::string fault = ShapeFault(WithField(TinyJson(one.family), one.field, one.value));
    EXPECT_NE(fault.find(one.field), std::string::npos) << one.field << ": " << fault;
  }
}

TEST(LayerShapes, YarnScalesTheScoresOfLatentAttentionTwice) {
  OrderedJson json = TinyJson("deepseek_v3");
  json["rope_scaling"]["mscale_all_dim"] = 0;
  const float plain = ParseShape(json).attention.scale;
  json["rope_scaling"]["mscale_all_dim"] = 0.7;
  const double mscale = 0.1 * 0.7 * std::log(4.0) + 1;

  EXPECT_FLOAT_EQ(ParseShape(json).attention.scale, plain * static_cast<float>(mscale * mscale));
}

}  // namespace
}  // namespace tandem::engine
