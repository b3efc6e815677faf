// Helium (Kyutai 2025), as transformers' HeliumForCausalLM: Llama's blocks with rope on
// neighbouring dimensions.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/family.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::helium {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"HeliumForCausalLM", "helium"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 48000,
                                .hidden_dim = 2560,
                                .ffn_dim = 7040,
                                .n_layers = 24,
                                .n_heads = 20,
                                .n_kv_heads = 20,
                                .head_dim = 128,
                                .max_context_len = 4096,
                                .norm_eps = 1e-8,
                                .bos = {1},
                                .eos = {2}},
                               source);
  c.family = "helium";
  RequireFullWidthHeads(c, source);
  ParseRope(json, 100000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  c.mlp_bias = JsonBoolOr(json, "mlp_bias", false, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "HeliumForCausalLM", "helium");
  json["mlp_bias"] = c.mlp_bias;
  return json;
}

LlamaTraits Traits(const ModelConfig& c) { return {.biases = {.qkv = c.attention_bias}}; }

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.attention_bias = c.mlp_bias = true;
}

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "helium",
    .models = "Helium",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<Traits>,
    .list_ropes = ListInterleavedRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTiny,
    .lora = &kDecoderLoraNames,
};

}  // namespace tandem::engine::helium
