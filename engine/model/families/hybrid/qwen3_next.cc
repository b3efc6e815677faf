// Qwen3-Next (Qwen Team 2025: 80B-A3B), as transformers' Qwen3NextForCausalLM: gated DeltaNets
// with fused projections, gated attention in every fourth layer, and experts with a gated shared
// one in most layers.

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/model/families/expert_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hybrid/delta_decoder.h"
#include "engine/model/families/hybrid/delta_gguf.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::qwen3_next {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Qwen3NextForCausalLM", "qwen3_next"};
constexpr DeltaTraits kTraits{.is_fused = true};

constexpr ExpertKeys kKeys{.shared_ffn = "shared_expert_intermediate_size",
                           .n_experts = 512,
                           .n_chosen = 10,
                           .normalise = true,
                           .ffn_dim = 512,
                           .shared_ffn_dim = 512};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 151936,
                                .hidden_dim = 2048,
                                .ffn_dim = 5632,
                                .n_layers = 48,
                                .n_heads = 16,
                                .n_kv_heads = 2,
                                .head_dim = 256,
                                .max_context_len = 32768},
                               source);
  c.family = "qwen3_next";
  ParseDelta(json, c, source);
  c.experts = ParseExperts(json, kKeys, source);
  ParseSparseLayers(json, c, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Qwen3NextForCausalLM", "qwen3_next");
  WriteDelta(c, json);
  WriteExperts(c, kKeys, json);
  WriteSparseLayers(c, json);
  return json;
}

void ShapeTiny(ModelConfig& c) {
  ShapeTinyDeltaExperts(c);
  c.experts.layers = {true, false, true, true};
}

constexpr int64_t kMaxTextCycle = 4;
constexpr std::array kMaxTextEnds{
    MaxTextRule{"model.embed_tokens.weight", "token_embedder.embedding", MaxTextShape::kTable},
    MaxTextRule{"lm_head.weight", "decoder.logits_dense.kernel", MaxTextShape::kKernel},
    MaxTextRule{"model.norm.weight", "decoder.decoder_norm.scale", MaxTextShape::kVector}};
// MaxText has no layers without experts in this model.
constexpr std::array kMaxTextLayer{
    MaxTextRule{"model.layers.{}.input_layernorm.weight", "input_layernorm.scale",
                MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.post_attention_layernorm.weight", "post_attention_layernorm.scale",
                MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.self_attn.q_proj.weight", "attention.attention.query.kernel",
                MaxTextShape::kQueryHeadsOut},
    MaxTextRule{"model.layers.{}.self_attn.k_proj.weight", "attention.attention.key.kernel",
                MaxTextShape::kHeadsOut},
    MaxTextRule{"model.layers.{}.self_attn.v_proj.weight", "attention.attention.value.kernel",
                MaxTextShape::kHeadsOut},
    MaxTextRule{"model.layers.{}.self_attn.o_proj.weight", "attention.attention.out.kernel",
                MaxTextShape::kHeadsIn},
    MaxTextRule{"model.layers.{}.self_attn.q_norm.weight", "attention.attention.query_norm.scale",
                MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.self_attn.k_norm.weight", "attention.attention.key_norm.scale",
                MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.linear_attn.in_proj_qkvz.weight", "attention.in_proj_qkvz.kernel",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.linear_attn.in_proj_ba.weight", "attention.in_proj_ba.kernel",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.linear_attn.conv1d.weight", "attention.conv1d.kernel",
                MaxTextShape::kConv},
    MaxTextRule{"model.layers.{}.linear_attn.A_log", "attention.A_log", MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.linear_attn.dt_bias", "attention.dt_bias", MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.linear_attn.norm.weight", "attention.norm.rms_norm.scale",
                MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.linear_attn.out_proj.weight", "attention.out_proj.kernel",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.gate.weight", "mlp.routed_experts.gate.kernel",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.experts.{E}.gate_proj.weight", "mlp.routed_experts.wi_0",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.experts.{E}.up_proj.weight", "mlp.routed_experts.wi_1",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.experts.{E}.down_proj.weight", "mlp.routed_experts.wo",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.shared_expert.gate_proj.weight",
                "mlp.shared_expert.wi_0.kernel", MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.shared_expert.up_proj.weight", "mlp.shared_expert.wi_1.kernel",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.shared_expert.down_proj.weight", "mlp.shared_expert.wo.kernel",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.shared_expert_gate.weight", "mlp.shared_expert_gate.kernel",
                MaxTextShape::kKernel}};
constexpr std::array kMaxTextRules = JoinRules(kMaxTextEnds, kMaxTextLayer);
constexpr MaxTextTree kMaxText{.rules = kMaxTextRules,
                               .blocks = MaxTextBlocks::kCycle,
                               .cycle = kMaxTextCycle,
                               .cycle_layer = "layer_"};
constexpr LoraNames kLora{.rules = kMaxTextRules,
                          .blocks = MaxTextBlocks::kCycle,
                          .cycle = kMaxTextCycle,
                          .cycle_layer = "layer_"};

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadDeltaGguf(metadata, json);
  ReadGgufExperts(metadata, kKeys, json);
  ReadGgufExpertWidths(metadata, kKeys, json);
  json["norm_topk_prob"] = true;
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = WriteDeltaGguf(c);
  AddGgufSharedExperts(c, settings);
  return settings;
}

constexpr auto kGgufParts =
    JoinGgufParts(kDeltaGgufParts, kFusedDeltaGgufParts, kDeltaExpertGgufParts);
constexpr GgufArchitecture kGguf{.name = "qwen3next",
                                 .parts = kGgufParts,
                                 .ends = kGgufOffsetNormEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kDeltaExpertGgufLimits,
                                 .has_experts = true};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "qwen3_next",
    .models = "Qwen3-Next",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListDeltaDecoder<kTraits>,
    .list_ropes = ListLlamaRopes,
    .forward = DeltaDecoderForward<kTraits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .maxtext = &kMaxText,
    .lora = &kLora,
};

}  // namespace tandem::engine::qwen3_next
