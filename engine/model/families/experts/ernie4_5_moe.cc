// ERNIE 4.5 with experts (Baidu 2025), as transformers' Ernie4_5_MoeForCausalLM: interleaved rope;
// experts by softmax with a bias of the choice, beside shared ones.

#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/io/json.h"
#include "engine/model/families/expert_gguf.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
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
                           .normalise = true,
                           .fixes_norm = true,
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
  RequireBool(json, "use_bias", false, source);
  ParseRope(json, 500000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  ExpertsConfig& e = c.experts = ParseExperts(json, kKeys, source);
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

// The first and last layers with experts, and the distance between two of them.
struct ExpertLayers {
  int64_t start = 0, end = 0, interval = 1;
};
ExpertLayers ExpertLayersOf(const ModelConfig& c) {
  ExpertLayers layers{.start = FirstExpertLayer(c)};
  int64_t second = layers.start + 1;
  while (second < c.n_layers && !c.HasExperts(second)) ++second;
  if (second < c.n_layers) layers.interval = second - layers.start;
  layers.end = layers.start;
  for (int64_t i = layers.start; i < c.n_layers; ++i) {
    if (c.HasExperts(i)) layers.end = i;
  }
  return layers;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Ernie4_5_MoeForCausalLM", "ernie4_5_moe");
  json.erase("attention_bias");
  json["use_bias"] = false;
  WriteExperts(c, kKeys, json);
  json["moe_num_shared_experts"] = c.experts.shared_ffn_dim / c.experts.ffn_dim;
  const ExpertLayers layers = ExpertLayersOf(c);
  json["moe_layer_start_index"] = layers.start;
  json["moe_layer_end_index"] = layers.end;
  json["moe_layer_interval"] = layers.interval;
  return json;
}

constexpr std::string_view kSelectionBias = "mlp.moe_statics.e_score_correction_bias";

LlamaTraits Traits(const ModelConfig&) { return {.experts = {.selection_bias = kSelectionBias}}; }

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs = ListLlamaWeights(c, Traits(c));
  for (WeightSpec& spec : specs) {
    if (spec.name.ends_with(kSelectionBias)) spec.source_shape = {1, spec.n};
  }
  return specs;
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

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, {.bias_field = nullptr});
  ReadGgufExperts(metadata, kKeys, json);
  ReadGgufExpertWidths(metadata, kKeys, json);
  const int64_t width = json[kKeys.ffn].get<int64_t>();
  const int64_t shared = metadata.Int(kGgufSharedCount).value_or(0);
  // The width counts, as for llama.cpp's graph; it was computed apart from the number.
  const int64_t shared_width = metadata.Int(kGgufSharedWidth).value_or(0);
  if (shared_width != shared * width) {
    metadata.Unsupported(kGgufSharedWidth, "is " + std::to_string(shared_width) + ", but " +
                                               std::to_string(shared) +
                                               " shared experts of width " + std::to_string(width) +
                                               " have another, which is not supported");
  }
  json["moe_num_shared_experts"] = shared;
  json["moe_layer_interval"] = metadata.Int(kGgufExpertStep).value_or(1);
  json["moe_layer_start_index"] = metadata.Int(kGgufFirstDense).value_or(0);
  json["use_bias"] = false;
  json["hidden_act"] = "silu";
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = WriteGgufExpertDecoder(c);
  const ExpertLayers layers = ExpertLayersOf(c);
  const auto add = [&](std::string_view key, int64_t value) {
    settings.push_back({key, static_cast<uint32_t>(value)});
  };
  add(kGgufExpertStep, layers.interval);
  add(kGgufFirstDense, layers.start);
  add(kGgufSharedCount, c.experts.shared_ffn_dim / c.experts.ffn_dim);
  add(kGgufSharedWidth, c.experts.shared_ffn_dim);
  return settings;
}

// Readers know a first layer with experts and a distance, and go on to the end.
std::string RequireExpertsToTheEnd(const ModelConfig& c) {
  const ExpertLayers layers = ExpertLayersOf(c);
  for (int64_t i = 0; i < c.n_layers; ++i) {
    if (c.HasExperts(i) != (i >= layers.start && (i + 1) % layers.interval == 0)) {
      return "'moe_layer_end_index' " + std::to_string(layers.end);
    }
  }
  return "";
}

constexpr auto kGgufParts = JoinGgufParts(
    kGgufAttentionParts, kGgufTwoNormParts,
    std::to_array<GgufPart>({
        {"exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias", GgufChange::kOneRow},
    }),
    kGgufSharedExpertParts);
constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RequirePlainRope, RequireSilu, RequireExpertsToTheEnd});
constexpr GgufArchitecture kGguf{.name = "ernie4_5-moe",
                                 .parts = kGgufParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits,
                                 .has_experts = true};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "ernie4_5_moe",
    .models = "ERNIE 4.5 with experts",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListInterleavedRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .lora = &kExpertLoraNames,
};

}  // namespace tandem::engine::ernie4_5_moe
