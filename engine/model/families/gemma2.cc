// Gemma 2 (Gemma Team 2024), as transformers' Gemma2ForCausalLM. It adds to Gemma a second norm
// after attention and MLP, soft caps on scores and logits, and a sliding window on every other
// layer.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/gemma_decoder.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/family.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Gemma2ForCausalLM", "gemma2"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 256000,
                                .hidden_dim = 2304,
                                .ffn_dim = 9216,
                                .n_layers = 26,
                                .n_heads = 8,
                                .n_kv_heads = 4,
                                .head_dim = 256,
                                .max_context_len = 8192,
                                .tied_embeddings = true,
                                .bos = {2},
                                .eos = {1}},
                               source);
  c.family = "gemma2";
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_activation", "gelu_pytorch_tanh", source);
  const auto windowed = [](int64_t layer) { return layer % 2 == 0; };
  ParseGemmaAttention(json, {.attention_cap = 50, .logit_cap = 30, .windowed = windowed}, c,
                      source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Gemma2ForCausalLM", "gemma2");
  WriteGemmaAttention(c, json);
  return json;
}

constexpr GemmaTraits kTraits{.output_norms = true};

std::vector<WeightSpec> ListWeights(const ModelConfig& c) { return ListGemmaWeights(c, kTraits); }

std::vector<RopeSpec> ListRopes(const ModelConfig& c) { return ListGemmaRopes(c, kTraits); }

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  GemmaForward(c, kTraits, weights, ops);
}

void ShapeTiny(ModelConfig& c) {
  ShapeTinyGemma(c, 2);
  WindowEveryOtherLayer(c);
  c.attention.soft_cap = 5;
  c.logit_cap = 8;
}

}  // namespace

extern constinit const FamilySpec kGemma2Family{
    .name = "gemma2",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListRopes,
    .forward = Forward,
    .shape_tiny = ShapeTiny,
};

}  // namespace tandem::engine
