// HunYuan, the dense models (Tencent 2025), as transformers' HunYuanDenseV1ForCausalLM: Llama's
// blocks with a norm on each head of q and k after rope.

#include <array>
#include <cmath>
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

namespace tandem::engine::hunyuan {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"HunYuanDenseV1ForCausalLM",
                                                         "hunyuan_v1_dense"};

// Rope type 'dynamic' with `alpha`: the base times alpha^(head_dim / (head_dim - 2)), at any
// length.
Json WithoutAlpha(Json json, const HfDefaults& defaults, const std::string& source) {
  for (const char* field : {"rope_parameters", "rope_scaling"}) {
    const auto rope = json.find(field);
    if (rope == json.end() || !rope->is_object()) continue;
    const double alpha = JsonNumberOr(*rope, "alpha", 0, 0, 1e9, source);
    const std::string type =
        JsonStringOr(*rope, "rope_type", JsonStringOr(*rope, "type", "default", source), source);
    if (alpha == 0 || type != "dynamic") return json;
    const auto head_dim =
        static_cast<double>(ParseDecoder(json, defaults, source).attention.head_dim);
    const double theta =
        JsonNumberOr(*rope, "rope_theta", JsonNumberOr(json, "rope_theta", 10000, 1, 1e12, source),
                     1, 1e12, source);
    json.erase("rope_parameters");
    json.erase("rope_scaling");
    json["rope_theta"] = head_dim > 2 ? theta * std::pow(alpha, head_dim / (head_dim - 2)) : theta;
    return json;
  }
  return json;
}

ModelConfig ParseConfig(const Json& given, const std::string& source) {
  const HfDefaults defaults{
      .vocab_size = 290943, .max_context_len = 2048, .norm_eps = 1e-5, .bos = {1}, .eos = {2}};
  const Json json = WithoutAlpha(given, defaults, source);
  ModelConfig c = ParseDecoder(json, defaults, source);
  c.family = "hunyuan";
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  RequireBool(json, "use_qk_norm", true, source);
  RequireBool(json, "use_cla", false, source);
  RequireBool(json, "mlp_bias", false, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  return WriteDecoder(c, "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense");
}

LlamaTraits Traits(const ModelConfig& c) {
  LlamaTraits traits{
      .biases = EqualBiases(c), .qk_norm = QkNorm::kHeads, .qk_norm_after_rope = true};
  traits.names.q_norm = "query_layernorm";
  traits.names.k_norm = "key_layernorm";
  return traits;
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.attention_bias = true;
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  json["hidden_act"] = "silu";
}

constexpr auto kGgufParts = JoinGgufParts(kGgufAttentionParts, kGgufTwoNormParts, kGgufMlpParts,
                                          std::to_array<GgufPart>({
                                              {"attn_q_norm", "self_attn.query_layernorm"},
                                              {"attn_k_norm", "self_attn.key_layernorm"},
                                          }));
constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RequireSilu, RequirePlainRope, RefuseAttentionBias});
constexpr GgufArchitecture kGguf{.name = "hunyuan-dense",
                                 .parts = kGgufParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGgufDecoder,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "hunyuan",
    .models = "HunYuan (dense)",
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

}  // namespace tandem::engine::hunyuan
