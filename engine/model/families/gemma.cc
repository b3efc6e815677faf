// Gemma (Gemma Team 2024), as transformers' GemmaForCausalLM: Llama's blocks with a GELU, norm
// scales stored minus 1, and embeddings scaled by the square root of their width.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/gemma_decoder.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/family.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"GemmaForCausalLM", "gemma"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 256000,
                                .hidden_dim = 3072,
                                .ffn_dim = 24576,
                                .n_layers = 28,
                                .n_heads = 16,
                                .n_kv_heads = 16,
                                .head_dim = 256,
                                .max_context_len = 8192,
                                .tied_embeddings = true,
                                .bos = {2},
                                .eos = {1}},
                               source);
  c.family = "gemma";
  ParseRope(json, 10000, c, source);
  // The first files say `hidden_act: gelu` but the models were trained with the tanh form.
  // `hidden_activation` takes precedence when present.
  const std::string act = JsonStringOr(json, "hidden_act", "gelu", source);
  const Activation fallback =
      act == "gelu" ? Activation::kGeluTanh : ParseActivation(json, "hidden_act", "", source);
  c.activation = ParseActivation(json, "hidden_activation", ActivationName(fallback), source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "GemmaForCausalLM", "gemma");
  json["hidden_activation"] = ActivationName(c.activation);
  return json;
}

constexpr GemmaTraits kTraits{};

std::vector<WeightSpec> ListWeights(const ModelConfig& c) { return ListGemmaWeights(c, kTraits); }

std::vector<RopeSpec> ListRopes(const ModelConfig& c) { return ListGemmaRopes(c, kTraits); }

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  GemmaForward(c, kTraits, weights, ops);
}

void ShapeTiny(ModelConfig& c) { ShapeTinyGemma(c, 1); }

}  // namespace

extern constinit const FamilySpec kGemmaFamily{
    .name = "gemma",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListRopes,
    .forward = Forward,
    .shape_tiny = ShapeTiny,
};

}  // namespace tandem::engine
