// ERNIE 4.5 with experts (Baidu 2025), as transformers' Ernie4_5_MoeForCausalLM: interleaved rope;
// experts by softmax with a bias of the choice, beside shared ones.

#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/io/json.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::ernie4_5_moe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Ernie4_5_MoeForCausalLM", "ernie4_5_moe"};

constexpr ExpertKeys kKeys{.count = "moe_num_experts",
                           .other_count = "num_experts",
                           .top_k = "moe_k",
                           .n_experts = 64,
                           .n_chosen = 6,
                           .ffn_dim = 1536};

// Experts are in each `moe_layer_interval`th layer from the start index to the end index.
void ParseExpertLayers(const Json& json, ModelConfig& c, const std::string& source) {
  const int64_t start = JsonIntOr(json, "moe_layer_start_index", 1, 0, kMaxLayers, source);
  const int64_t end = JsonIntOr(json, "moe_layer_end_index", -1, -1, kMaxLayers, source);
  const int64_t interval = JsonIntOr(json, "moe_layer_interval", 1, 1, kMaxLayers, source);
  c.experts.layers.clear();
  for (int64_t i = 0; i < c.n_layers; ++i) {
    c.experts.layers.push_back((i + 1) % interval == 0 && i >= start && (end < 0 || i <= end));
  }
}

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 103424,
                                .hidden_dim = 2560,
                                .ffn_dim = 12288,
                                .n_layers = 28,
                                .n_heads = 20,
                                .n_kv_heads = 4,
                                .max_context_len = 131072,
                                .norm_eps = 1e-5,
                                .tied_embeddings = true,
                                .bos = {1},
                                .eos = {2}},
                               source);
  c.family = "ernie4_5_moe";
  c.attention_bias = false;  // not a key of this class
  if (JsonBoolOr(json, "use_bias", false, source)) ThrowUnsupported(source, "'use_bias': true");
  ParseRope(json, 500000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  ExpertsConfig& e = c.experts = ParseExperts(json, kKeys, source);
  e.router.normalise = true;
  const double least = JsonNumberOr(json, "moe_norm_min", 1e-12, 0, 1, source);
  // The sum of chosen softmax scores is at least this; the limit never applies below it.
  if (least > static_cast<double>(e.router.top_k) / static_cast<double>(e.router.n_experts) / 1e3) {
    ThrowUnsupported(source, "'moe_norm_min' " + std::to_string(least));
  }
  e.selection_bias = true;
  e.shared_ffn_dim = JsonIntOr(json, "moe_num_shared_experts", 2, 0, 64, source) * e.ffn_dim;
  ParseExpertLayers(json, c, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Ernie4_5_MoeForCausalLM", "ernie4_5_moe");
  json.erase("attention_bias");
  json["use_bias"] = false;
  WriteExperts(c, kKeys, json);
  json.erase("norm_topk_prob");
  json["moe_num_shared_experts"] = c.experts.shared_ffn_dim / c.experts.ffn_dim;
  // The first and last layers with experts, and the distance between two of them.
  const int64_t start = FirstExpertLayer(c);
  int64_t second = start + 1, end = start;
  while (second < c.n_layers && !c.HasExperts(second)) ++second;
  for (int64_t i = start; i < c.n_layers; ++i) {
    if (c.HasExperts(i)) end = i;
  }
  json["moe_layer_start_index"] = start;
  json["moe_layer_end_index"] = end;
  json["moe_layer_interval"] = second < c.n_layers ? second - start : 1;
  return json;
}

constexpr LlamaTraits kTraits{
    .experts = {.selection_bias = "mlp.moe_statics.e_score_correction_bias"}};

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs = ListLlamaWeights(c, kTraits);
  for (WeightSpec& spec : specs) {
    if (spec.name.ends_with(kTraits.experts.selection_bias)) spec.source_shape = {1, spec.n};
  }
  return specs;
}

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  LlamaForward(c, kTraits, weights, ops);
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  ShapeTinyExperts(c);
  c.experts.router.normalise = true;
  c.experts.selection_bias = true;
  c.experts.shared_ffn_dim = 2 * c.experts.ffn_dim;
  c.experts.layers.assign(static_cast<size_t>(c.n_layers), true);
  c.experts.layers.front() = false;
}

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "ernie4_5_moe",
    .models = "ERNIE 4.5 with experts",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListInterleavedRopes,
    .forward = Forward,
    .shape_tiny = ShapeTiny,
    .lora = &kExpertLoraNames,
};

}  // namespace tandem::engine::ernie4_5_moe
