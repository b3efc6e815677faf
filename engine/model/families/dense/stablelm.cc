// StableLM and StableLM 2 (Bellagente et al. 2024), as transformers' StableLmForCausalLM: Llama's
// blocks with LayerNorms and rope on a quarter of each head; some models add attention and MLP of
// one norm.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::stablelm {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"StableLmForCausalLM", "stablelm"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 50304,
                                .hidden_dim = 2560,
                                .ffn_dim = 6912,
                                .n_kv_heads = 32,
                                .max_context_len = 4096,
                                .bos = {0},
                                .eos = {0}},
                               source);
  c.family = "stablelm";
  RequireFullWidthHeads(c, source);
  ParseNormEps(json, "layer_norm_eps", 1e-5, c, source);
  ParseRope(json, RopeRules{.partial = true, .rotary_factor = 0.25}, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  c.attention_bias = JsonBoolOr(json, "use_qkv_bias", false, source);
  c.parallel_residual = JsonBoolOr(json, "use_parallel_residual", false, source);
  // One LayerNorm for each head would need an op of its own.
  RequireBool(json, "qk_layernorm", false, source);
  RequireZero(json, "hidden_dropout", source);  // transformers applies it to the MLP alone
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteLayerNormDecoder(c, "StableLmForCausalLM", "stablelm", "layer_norm_eps");
  json["partial_rotary_factor"] = RotaryFactor(c.rotary_dim, c.attention.head_dim);
  json["use_qkv_bias"] = c.attention_bias;
  json["use_parallel_residual"] = c.parallel_residual;
  json["qk_layernorm"] = false;
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  LlamaTraits traits{.biases = {.qkv = c.attention_bias},
                     .norm = NormKind::kLayer,
                     .parallel = c.parallel_residual};
  if (c.parallel_residual) traits.norms.mlp_in = "";
  return traits;
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.rotary_dim = 4;
  c.attention_bias = true;
  c.parallel_residual = true;
}

constexpr GgufDecoderForm kGgufForm{.partial_rope = true,
                                    .eps_key = kGgufLayerNormEps,
                                    .eps_field = "layer_norm_eps",
                                    .bias_field = "use_qkv_bias"};

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, kGgufForm);
  // Readers recognise one norm for both parts by its tensors.
  json["use_parallel_residual"] = !metadata.HasTensor("blk.0.ffn_norm.weight");
  json["qk_layernorm"] = metadata.HasTensor("blk.0.attn_q_norm.weight");
  json["hidden_act"] = "silu";
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) { return GgufDecoderSizes(c, kGgufForm); }

constexpr auto kGgufLimits = std::to_array<GgufLimit>({RequireSilu, RequirePlainRope});
constexpr GgufArchitecture kGguf{.name = "stablelm",
                                 .parts = kGgufQwenParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "stablelm",
    .models = "StableLM, StableLM 2",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<Traits>,
    .list_ropes = ListLlamaRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .lora = &kDecoderLoraNames,
};

}  // namespace tandem::engine::stablelm
