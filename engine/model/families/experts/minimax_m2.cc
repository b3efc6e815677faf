// MiniMax-M2 (MiniMax 2025), as transformers' MiniMaxM2ForCausalLM: norms over all heads of q and
// k, a part of each head rotates, experts by sigmoid scores with a bias of the choice.

#include <array>
#include <nlohmann/json.hpp>

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

namespace tandem::engine::minimax_m2 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"MiniMaxM2ForCausalLM", "minimax_m2"};

constexpr ExpertKeys kKeys = LocalExpertKeys(256, 8, 1536, true);

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 200064,
                                .hidden_dim = 3072,
                                .ffn_dim = 1536,
                                .n_layers = 62,
                                .n_heads = 48,
                                .n_kv_heads = 8,
                                .head_dim = 128,
                                .max_context_len = 196608,
                                .bos = {200034},
                                .eos = {200020}},
                               source);
  c.family = "minimax_m2";
  c.attention_bias = false;  // not a key of this class
  // Published configs state the rotating dimensions of a head, not their part of it.
  const int64_t rotary =
      JsonIntOr(json, "rotary_dim", c.attention.head_dim, 2, c.attention.head_dim, source);
  const double factor = static_cast<double>(rotary) / static_cast<double>(c.attention.head_dim);
  ParseRope(json, {.theta = 5e6, .partial = true, .rotary_factor = factor}, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  RequireName(json, "scoring_func", "sigmoid", source);
  c.experts = ParseExperts(json, kKeys, source);
  c.experts.router.score = RouterScore::kSigmoid;
  c.experts.selection_bias = true;
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "MiniMaxM2ForCausalLM", "minimax_m2");
  json.erase("attention_bias");
  json["partial_rotary_factor"] = RotaryFactor(c.rotary_dim, c.attention.head_dim);
  WriteExperts(c, kKeys, json);
  return json;
}

LlamaTraits Traits(const ModelConfig&) {
  return {.qk_norm = QkNorm::kWidth, .experts = kBlockSparseExperts};
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.rotary_dim = c.attention.head_dim / 2;
  ShapeTinyExperts(c);
  c.experts.router.score = RouterScore::kSigmoid;
  c.experts.router.normalise = true;
  c.experts.selection_bias = true;
  c.ffn_dim = c.experts.ffn_dim;
}

constexpr GgufDecoderForm kGgufForm{.partial_rope = true};

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, kGgufForm);
  ReadGgufExperts(metadata, kKeys, json);
  ReadGgufExpertWidths(metadata, kKeys, json);
  json["hidden_act"] = "silu";
  if (metadata.Int(kGgufScore).value_or(kGgufSigmoid) != kGgufSigmoid) {
    metadata.Unsupported(kGgufScore, "must be 2, sigmoid");
  }
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = GgufDecoderSizes(c, kGgufForm);
  AddGgufExperts(c, settings);
  settings.push_back({kGgufScore, static_cast<uint32_t>(kGgufSigmoid)});
  return settings;
}

constexpr auto kGgufParts =
    JoinGgufParts(kGgufAttentionParts, kGgufTwoNormParts, kGgufHeadNormParts, kGgufBlockSparseParts,
                  std::to_array<GgufPart>({
                      {"exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"},
                  }));
constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RefuseLlama3Rope, RefuseUntruncatedYarn, RequireSilu});
constexpr GgufArchitecture kGguf{.name = "minimax-m2",
                                 .parts = kGgufParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits,
                                 .has_experts = true};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "minimax_m2",
    .models = "MiniMax-M2",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<Traits>,
    .list_ropes = ListLlamaRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
};

}  // namespace tandem::engine::minimax_m2
