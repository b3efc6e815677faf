// Phi-3, Phi-3.5 mini, Phi-4 and Phi-4-mini (Abdin et al. 2024), as transformers' Phi3ForCausalLM:
// Llama's blocks with q, k and v in one product, gate and up in another. Phi-4-mini rotates three
// quarters of a head; models for 128k tokens use LongRoPE.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_layers.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::phi3 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Phi3ForCausalLM", "phi3"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 32064,
                                .hidden_dim = 3072,
                                .ffn_dim = 8192,
                                .max_context_len = 4096,
                                .norm_eps = 1e-5,
                                .bos = {1},
                                .eos = {32000}},
                               source);
  c.family = "phi3";
  c.attention_bias = false;  // not a key of this class
  ParseRope(json, {.partial = true, .has_long = true}, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  c.attention.window = ParseWindow(json, 0, source);
  c.dropout = ParseDropout(json, "resid_pdrop", 0, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Phi3ForCausalLM", "phi3");
  json.erase("attention_bias");
  const bool is_long = c.rope_scaling.kind == RopeKind::kLong;
  json["original_max_position_embeddings"] =
      is_long ? c.rope_scaling.original_max_positions : c.max_context_len;
  json["partial_rotary_factor"] = RotaryFactor(c.rotary_dim, c.attention.head_dim);
  json["pad_token_id"] = nullptr;  // the class's own, 32000, may be outside of the vocabulary
  json["resid_pdrop"] = ShortestDouble(c.dropout);
  json["sliding_window"] = WindowToJson(c);
  return json;
}

LlamaTraits Traits(const ModelConfig&) { return {.fused_qkv = true, .mlp = MlpKind::kFusedGate}; }

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.attention.window = kTinyWindow;
  c.rotary_dim = 8;
  c.rope_scaling = {.kind = RopeKind::kLong,
                    .factor = 1,
                    .original_max_positions = c.max_context_len,
                    .short_factors = {1, 1.25, 1.5, 2},
                    .long_factors = {1, 2, 4, 8}};
}

constexpr auto kGgufParts =
    JoinGgufParts(kGgufTwoNormParts, std::to_array<GgufPart>({
                                         {"attn_qkv", "self_attn.qkv_proj"},
                                         {"attn_output", "self_attn.o_proj"},
                                         {"ffn_up", "mlp.gate_up_proj"},
                                         {"ffn_down", "mlp.down_proj"},
                                     }));

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, {.partial_rope = true});
  json["hidden_act"] = "silu";
  json["pad_token_id"] = nullptr;
  ReadGgufWindows(metadata, json);
  constexpr std::string_view kOriginal = "rope.scaling.original_context_length";
  if (const auto original = metadata.Int(kOriginal)) {
    json["original_max_position_embeddings"] = *original;
  }
  if (!metadata.HasTensor(kGgufLongRopeDivisors)) return;
  const int64_t pairs = metadata.RequiredInt("rope.dimension_count") / 2;
  metadata.RequiredInt(kOriginal);
  Json rope{{"rope_type", "longrope"}};
  rope["long_factor"] = metadata.RopeDivisors(kGgufLongRopeDivisors, pairs).value();
  if (const auto factors = metadata.RopeDivisors(kGgufShortRopeDivisors, pairs)) {
    rope["short_factor"] = *factors;
  }
  if (const auto amplitude = metadata.Number("rope.scaling.attn_factor")) {
    rope["attention_factor"] = Shortest(*amplitude);
  }
  json["rope_scaling"] = std::move(rope);
}

// A window of 0 says that there is none.
std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = GgufDecoderSizes(c);
  settings.push_back({kGgufWindow, static_cast<uint32_t>(c.attention.window)});
  const RopeScaling& rope = c.rope_scaling;
  const bool is_long = rope.kind == RopeKind::kLong;
  settings.push_back(
      {"rope.scaling.original_context_length",
       static_cast<uint32_t>(is_long ? rope.original_max_positions : c.max_context_len)});
  if (is_long) {
    settings.push_back({"rope.scaling.attn_factor", static_cast<float>(rope.attention_factor)});
  }
  return settings;
}

constexpr auto kGgufLimits = std::to_array<GgufLimit>({RefuseLlama3Rope, RefuseYarn, RequireSilu});
constexpr GgufArchitecture kGguf{.name = "phi3",
                                 .parts = kGgufParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits,
                                 .caveat = IgnoredWindowCaveat};

constexpr std::array kLoraRules =
    JoinRules(kMaxTextFusedQkv, kMaxTextValueAndOut, kMaxTextFusedMlp);
constexpr LoraNames kLora{.rules = kLoraRules};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "phi3",
    .models = "Phi-3, Phi-3.5 mini, Phi-4, Phi-4-mini",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<Traits>,
    .list_ropes = ListLlamaRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .lora = &kLora,
};

}  // namespace tandem::engine::phi3
