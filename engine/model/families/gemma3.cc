// Gemma 3, text (Gemma Team 2025), as transformers' Gemma3ForCausalLM: Gemma 2 without its caps and
// with norms on the heads of q and k. Every full-attention layer follows five windowed layers,
// which have their own rope. Only the text part of Gemma3ForConditionalGeneration is read.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/io/json.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/gemma_decoder.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/family.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kArchitectures{
    "Gemma3ForCausalLM", "gemma3_text", "Gemma3ForConditionalGeneration", "gemma3"};

constexpr double kLocalTheta = 10000, kGlobalTheta = 1000000;

// Either two bases and one scaling, or one object per layer type. The scaling applies to
// full-attention layers.
void ParseRopes(const Json& json, ModelConfig& c, const std::string& source) {
  const auto parameters = json.find("rope_parameters");
  if (parameters == json.end() || !parameters->is_object() ||
      !parameters->contains("full_attention")) {
    ParseRope(json, kGlobalTheta, c, source);
    c.local_rope_theta = JsonNumberOr(json, "rope_local_base_freq", kLocalTheta, 1, 1e12, source);
    return;
  }
  SetRope(ParseRopeObject((*parameters)["full_attention"], "full_attention", kGlobalTheta,
                          c.max_context_len, source),
          c);
  c.local_rope_theta = kLocalTheta;
  if (!parameters->contains("sliding_attention")) return;
  const RopeConfig sliding =
      ParseRopeObject((*parameters)["sliding_attention"], "sliding_attention", kLocalTheta,
                      c.max_context_len, source);
  if (sliding.scaling.kind != RopeKind::kPlain) {
    ThrowUnsupported(source, "rope scaling of 'sliding_attention' layers");
  }
  c.local_rope_theta = sliding.theta;
}

// The text part of a multimodal model; keys outside of it apply to the whole model.
Json TextConfig(const Json& json, const std::string& source) {
  const auto text = json.find("text_config");
  if (text == json.end() || text->is_null()) return json;
  if (!text->is_object()) {
    throw Error(ErrorCode::kDataLoss,
                source + ": field 'text_config' must be an object, got " + text->type_name());
  }
  Json merged = *text;
  for (const char* field :
       {"bos_token_id", "eos_token_id", "tie_word_embeddings", "quantization_config"}) {
    if (json.contains(field) && !json[field].is_null()) merged[field] = json[field];
  }
  return merged;
}

ModelConfig ParseConfig(const Json& outer, const std::string& source) {
  const Json json = TextConfig(outer, source);
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 262208,
                                .hidden_dim = 2304,
                                .ffn_dim = 9216,
                                .n_layers = 26,
                                .n_heads = 8,
                                .n_kv_heads = 4,
                                .head_dim = 256,
                                .max_context_len = 131072,
                                .tied_embeddings = true,
                                .bos = {2},
                                .eos = {1}},
                               source);
  c.family = "gemma3";
  ParseRopes(json, c, source);
  c.activation = ParseActivation(json, "hidden_activation", "gelu_pytorch_tanh", source);
  const int64_t pattern = JsonIntOr(json, "sliding_window_pattern", 6, 1, kMaxLayers, source);
  const auto windowed = [=](int64_t layer) { return (layer + 1) % pattern != 0; };
  ParseGemmaAttention(json, {.windowed = windowed}, c, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Gemma3ForCausalLM", "gemma3_text");
  json["rope_local_base_freq"] = c.local_rope_theta;
  WriteGemmaAttention(c, json);
  return json;
}

constexpr GemmaTraits kTraits{.output_norms = true, .qk_norm = true, .local_rope = true};

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs = ListGemmaWeights(c, kTraits);
  // Names inside a multimodal model, as transformers before and after 4.52 writes them.
  for (WeightSpec& spec : specs) {
    spec.aliases.push_back("language_model." + spec.name);
    if (spec.name.starts_with("model.")) {
      spec.aliases.push_back("model.language_model." + spec.name.substr(6));
    }
  }
  return specs;
}

std::vector<RopeSpec> ListRopes(const ModelConfig& c) { return ListGemmaRopes(c, kTraits); }

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  GemmaForward(c, kTraits, weights, ops);
}

void ShapeTiny(ModelConfig& c) {
  c.n_layers = 3;
  ShapeTinyGemma(c, 2);
  WindowEveryOtherLayer(c);
  c.rope_theta = 1000000;
  c.rope_scaling = {.kind = RopeKind::kLinear, .factor = 8};
}

}  // namespace

extern constinit const FamilySpec kGemma3Family{
    .name = "gemma3",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListRopes,
    .forward = Forward,
    .shape_tiny = ShapeTiny,
};

}  // namespace tandem::engine
