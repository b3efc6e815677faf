// Llama 2 and 3 (Touvron et al. 2023, Grattafiori et al. 2024), as transformers' LlamaForCausalLM:
// pre-norm blocks of grouped-query attention with rotary positions and a SwiGLU MLP. TinyLlama,
// SmolLM2 and our own tandem-stories are of this family too.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/family.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"LlamaForCausalLM", "llama"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json, {.max_context_len = 2048, .bos = {1}, .eos = {2}}, source);
  c.family = "llama";
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  c.mlp_bias = JsonBoolOr(json, "mlp_bias", false, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "LlamaForCausalLM", "llama");
  json["mlp_bias"] = c.mlp_bias;
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  return {.biases = {.qkv = c.attention_bias, .o = c.attention_bias}};
}

std::vector<WeightSpec> ListWeights(const ModelConfig& c) { return ListLlamaWeights(c, Traits(c)); }

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  LlamaForward(c, Traits(c), weights, ops);
}

void ShapeTiny(ModelConfig& c) { c.attention.n_kv_heads = 2; }

}  // namespace

extern constinit const FamilySpec kLlamaFamily{
    .name = "llama",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListLlamaRopes,
    .forward = Forward,
    .shape_tiny = ShapeTiny,
};

}  // namespace tandem::engine
