// Llama 2 and 3 (Touvron et al. 2023, Grattafiori et al. 2024), as transformers' LlamaForCausalLM:
// pre-norm blocks of grouped-query attention with rotary positions and a SwiGLU MLP. TinyLlama,
// SmolLM2 and our own tandem-stories are of this family too.

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

namespace tandem::engine::llama {
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

void ShapeTiny(ModelConfig& c) { c.attention.n_kv_heads = 2; }

constexpr std::array<GgufLimit, 2> kGgufLimits{RefuseUntruncatedYarn, RequireSilu};
constexpr GgufArchitecture kGguf{.name = "llama",
                                 .parts = kGgufLlamaParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGgufLlama,
                                 .write_config = WriteGgufDecoder,
                                 .limits = kGgufLimits};

// MaxText divides q by the root of the head size when it stores it.
constexpr std::array kMaxTextRules = JoinRules(
    kMaxTextTablesAndTwoNorms,
    std::array{MaxTextRule{"model.layers.{}.self_attn.q_proj.weight", "self_attention.query.kernel",
                           MaxTextShape::kHeadsOut, MaxTextValue::kOverRootHeadDim, true},
               MaxTextRule{"model.layers.{}.self_attn.k_proj.weight", "self_attention.key.kernel",
                           MaxTextShape::kHeadsOut, MaxTextValue::kAsIs, true}},
    kMaxTextValueAndOut, kMaxTextMlp);
// Llama 3.1 and later interleave q and k as pairs. MaxText's converter for Llama 3 leaves them in
// Hugging Face's order.
constexpr std::array kMaxTextForms{MaxTextForm{"llama3-", "llama3-8b", false},
                                   MaxTextForm{"llama3.", "llama3.1-8b", true}};
constexpr MaxTextTree kMaxText{.rules = kMaxTextRules, .forms = kMaxTextForms};

void CompleteFresh(ModelConfig& c) {
  constexpr int64_t kMultiple = 64;
  const int64_t wide = c.hidden_dim * 8 / 3;
  if (c.ffn_dim == 0) c.ffn_dim = (wide + kMultiple - 1) / kMultiple * kMultiple;
  c.activation = Activation::kSilu;
}

constexpr FreshFields kFresh{.ffn_dim = "8/3 of the width", .complete = CompleteFresh};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "llama",
    .models = "Llama 2, 3, 3.1, 3.2, TinyLlama, SmolLM2",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<PlainTraits>,
    .list_ropes = ListLlamaRopes,
    .forward = LlamaForward<PlainTraits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .maxtext = &kMaxText,
    .lora = &kDecoderLoraNames,
    .fresh = &kFresh,
};

}  // namespace tandem::engine::llama
