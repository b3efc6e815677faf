// gpt-oss (OpenAI 2025), as transformers' GptOssForCausalLM: attention with sinks and biases, a
// window on every other layer, and experts with biases and a clamped SwiGLU in every layer.

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "engine/base/quoted.h"
#include "engine/io/json.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/expert_gguf.h"
#include "engine/model/families/expert_parts.h"
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
#include "engine/model/families/maxtext_tree.h"

namespace tandem::engine::gpt_oss {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"GptOssForCausalLM", "gpt_oss"};

constexpr double kTheta = 150000;
constexpr int64_t kWindow = 128;
constexpr int64_t kPattern = 2;  // every layer has a window except each second

constexpr ExpertKeys kKeys{.ffn = "intermediate_size",
                           .n_experts = 128,
                           .n_chosen = 4,
                           .fixes_norm = true,
                           .ffn_dim = 2880};

// The class has a scaling of its own where config.json has none.
constexpr RopeScaling kDefaultScaling{.kind = RopeKind::kYarn,
                                      .factor = 32,
                                      .original_max_positions = 4096,
                                      .attention_factor = 1.3465735902799727,  // 0.1 ln 32 + 1
                                      .truncate = false};

void RequireNumber(const Json& json, const char* field, double value, const std::string& source) {
  const double got = JsonNumberOr(json, field, value, -1e9, 1e9, source);
  if (static_cast<float>(got) == static_cast<float>(value)) return;
  ThrowUnsupported(source, Quoted(field) + " " + std::to_string(got) + "; supported is " +
                               std::to_string(value));
}

ModelConfig ParseConfig(const Json& given, const std::string& source) {
  Json json = given;
  if (!IsGiven(json, "attention_bias")) json["attention_bias"] = true;
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 201088,
                                .hidden_dim = 2880,
                                .ffn_dim = 2880,
                                .n_layers = 36,
                                .n_heads = 64,
                                .n_kv_heads = 8,
                                .head_dim = 64,
                                .max_context_len = 131072,
                                .norm_eps = 1e-5},
                               source);
  c.family = "gpt_oss";
  ParseRope(json, kTheta, c, source);
  if (!IsGiven(json, "rope_parameters") && !IsGiven(json, "rope_scaling")) {
    SetRope({.theta = c.rope_theta, .scaling = kDefaultScaling}, c, source);
  }
  RequireNumber(json, "swiglu_limit", double{kSwigluLimit}, source);
  RequireNumber(json, "swiglu_alpha", double{kSwigluAlpha}, source);
  c.activation = Activation::kClampedSwiglu;
  c.experts = ParseExperts(json, kKeys, source);
  c.experts.router.softmax_of_chosen = true;
  ParseWindowPattern(json, kWindow, kPattern, c, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  ModelConfig plain = c;
  plain.activation = Activation::kSilu;  // as the class names it; swiglu_limit says the rest
  Json json = WriteDecoder(plain, "GptOssForCausalLM", "gpt_oss");
  if (c.rope_scaling.kind == RopeKind::kPlain) json["rope_scaling"] = {{"rope_type", "default"}};
  json["num_local_experts"] = c.experts.router.n_experts;
  json["num_experts_per_tok"] = c.experts.router.top_k;
  json["experts_per_token"] = c.experts.router.top_k;
  json["router_aux_loss_coef"] = ShortestDouble(c.experts.aux_loss);
  json["swiglu_limit"] = ShortestDouble(kSwigluLimit);
  json["swiglu_alpha"] = ShortestDouble(kSwigluAlpha);
  WriteWindows(c, json);
  return json;
}

// A projection of all experts: weights and biases, one of each per expert. `stacked` is the tensor
// that holds them, [experts, inputs, outputs of all projections], in which those of this one are
// each `step`th from `first` on. Blocks of MXFP4 keep inputs last.
struct ExpertProjection {
  const char* name;
  const char* stacked;
  int64_t first, step;
};
constexpr ExpertProjection kGate{"gate_proj", "gate_up_proj", 0, 2};
constexpr ExpertProjection kUp{"up_proj", "gate_up_proj", 1, 2};
constexpr ExpertProjection kDown{"down_proj", "down_proj", 0, 1};

void ListExpertProjection(std::vector<WeightSpec>& specs, const std::string& experts,
                          const ExpertProjection& projection, int64_t n_experts, int64_t n,
                          int64_t k) {
  const std::string stacked = experts + "." + projection.stacked;
  const auto part = [&](const char* suffix, int64_t expert, bool transposed) {
    return StoredPart{.tensor = stacked + suffix,
                      .index = expert,
                      .first_row = projection.first,
                      .row_step = projection.step,
                      .transposed = transposed};
  };
  const auto name = [&](int64_t expert) {
    return experts + "." + std::to_string(expert) + "." + projection.name;
  };
  for (int64_t e = 0; e < n_experts; ++e) {
    WeightSpec spec = MatrixSpec(name(e) + ".weight", n, k);
    spec.parts = {part("", e, true), part("_blocks", e, false)};
    specs.push_back(std::move(spec));
  }
  for (int64_t e = 0; e < n_experts; ++e) {
    WeightSpec spec = VectorSpec(name(e) + ".bias", n);
    spec.parts = {part("_bias", e, false)};
    specs.push_back(std::move(spec));
  }
}

struct ExpertLayers {
  std::span<const Weight> weights, biases;
};

struct Layer {
  const Weight& attn_norm;
  SelfAttention attn;
  const Weight& sinks;
  const Weight& mlp_norm;
  Projection router;
  ExpertLayers gate, up, down;
};

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs;
  specs.push_back(EmbeddingSpec("model.embed_tokens.weight", c.vocab_size, c.hidden_dim));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const std::string prefix = LayerPrefix(layer);
    specs.push_back(VectorSpec(prefix + "input_layernorm.weight", c.hidden_dim));
    ListSelfAttention(specs, prefix + "self_attn", c, EqualBiases(c));
    specs.push_back(VectorSpec(prefix + "self_attn.sinks", c.attention.n_heads));
    specs.push_back(VectorSpec(prefix + "post_attention_layernorm.weight", c.hidden_dim));
    const int64_t n_experts = c.experts.router.n_experts, ffn = c.experts.ffn_dim;
    ListProjection(specs, prefix + "mlp.router", n_experts, c.hidden_dim, true);
    const std::string experts = prefix + "mlp.experts";
    ListExpertProjection(specs, experts, kGate, n_experts, ffn, c.hidden_dim);
    ListExpertProjection(specs, experts, kUp, n_experts, ffn, c.hidden_dim);
    ListExpertProjection(specs, experts, kDown, n_experts, c.hidden_dim, ffn);
  }
  ListHead(specs, VectorSpec("model.norm.weight", c.hidden_dim), c);
  return specs;
}

// Braced initialisers evaluate in order, so members are taken in the order of ListWeights.
ExpertLayers TakeExpertLayers(WeightCursor& w, const ModelConfig& c) {
  const int64_t n_experts = c.experts.router.n_experts;
  return {w.TakeMany(n_experts), w.TakeMany(n_experts)};
}

Layer TakeLayer(WeightCursor& w, const ModelConfig& c) {
  return {w.Take(),
          TakeSelfAttention(w, EqualBiases(c)),
          w.Take(),
          w.Take(),
          TakeProjection(w, true),
          TakeExpertLayers(w, c),
          TakeExpertLayers(w, c),
          TakeExpertLayers(w, c)};
}

Act RunExperts(const Layer& w, const ModelConfig& c, Act x, LayerOps& ops) {
  const Act routing = ops.Route(Project(ops, x, w.router), nullptr, c.experts.router);
  const auto project = [&](Act from, const ExpertLayers& layers) {
    return ops.ExpertLinear(from, routing, layers.weights, layers.biases);
  };
  const Act gate = project(x, w.gate);  // [rows, top_k * ffn_dim]
  const Act hidden = ops.GatedActivation(gate, project(x, w.up), c.activation);
  return ops.Combine(project(hidden, w.down), routing);
}

Act Block(const Layer& w, const ModelConfig& c, Act x, int64_t layer, LayerOps& ops) {
  const Act h = ops.RmsNorm(x, w.attn_norm, c.norm_eps);  // [rows, hidden_dim]
  x = ops.Add(x, RunSelfAttention(ops, w.attn, c, h, layer, &w.sinks));
  return ops.Add(x, RunExperts(w, c, ops.RmsNorm(x, w.mlp_norm, c.norm_eps), ops));
}

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  WeightCursor w(weights);
  const Weight& embedding = w.Take();
  Act x = ops.Embed(embedding);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    x = Block(TakeLayer(w, c), c, x, layer, ops);
  }
  RunHead(ops, w, embedding, c, x);
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.attention_bias = true;
  c.activation = Activation::kClampedSwiglu;
  ShapeTinyExperts(c);
  c.ffn_dim = c.experts.ffn_dim;  // one key of config.json
  c.experts.router.softmax_of_chosen = true;
  c.rope_theta = kTheta;
  c.rope_scaling = kDefaultScaling;
  c.rope_scaling.original_max_positions = std::max<int64_t>(1, c.max_context_len / 32);
  WindowEveryOtherLayer(c);
}

constexpr auto kGgufParts =
    JoinGgufParts(kGgufAttentionParts, kGgufExpertParts, kGgufJoinedExpertParts,
                  std::to_array<GgufPart>({
                      {"attn_norm", "input_layernorm"},
                      {"attn_sinks.weight", "self_attn.sinks"},
                      {"post_attention_norm", "post_attention_layernorm"},
                      {"ffn_gate_inp", "mlp.router"},
                  }));

// GGUF has no key for the ramp of yarn, which is not truncated in this architecture.
void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  ReadGgufExperts(metadata, {.count = "num_local_experts"}, json);
  ReadGgufExpertWidths(metadata, kKeys, json);
  json["sliding_window"] = metadata.RequiredInt(kGgufWindow);
  if (!IsGiven(json, "rope_scaling")) json["rope_scaling"] = {{"rope_type", "default"}};
  if (json["rope_scaling"]["rope_type"] == "yarn") json["rope_scaling"]["truncate"] = false;
}

std::string RequireAttentionBias(const ModelConfig& c) {
  return c.attention_bias ? "" : "an attention without biases";
}

std::string RefuseTruncatedYarn(const ModelConfig& c) {
  const bool is_truncated = c.rope_scaling.kind == RopeKind::kYarn && c.rope_scaling.truncate;
  return is_truncated ? "'truncate': true of yarn" : "";
}

std::string GgufCaveat(const ModelConfig& c) {
  if (c.rope_scaling.kind != RopeKind::kYarn) return "";
  return "other GGUF readers round the borders of yarn's ramp to whole dimensions; their rotations "
         "differ slightly";
}

constexpr auto kGgufLimits = std::to_array<GgufLimit>(
    {RefuseLlama3Rope, RefuseTruncatedYarn, RequireAlternatingWindows, RequireAttentionBias});
constexpr GgufArchitecture kGguf{.name = "gpt-oss",
                                 .parts = kGgufParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGgufExpertDecoder,
                                 .limits = kGgufLimits,
                                 .has_experts = true,
                                 .caveat = GgufCaveat};

constexpr std::array kMaxTextLayer{
    MaxTextRule{"model.layers.{}.self_attn.q_proj.weight", "GptOssAttention.query.kernel",
                MaxTextShape::kHeadsOut},
    MaxTextRule{"model.layers.{}.self_attn.q_proj.bias", "GptOssAttention.query.bias",
                MaxTextShape::kHeadsVector},
    MaxTextRule{"model.layers.{}.self_attn.k_proj.weight", "GptOssAttention.key.kernel",
                MaxTextShape::kHeadsOut},
    MaxTextRule{"model.layers.{}.self_attn.k_proj.bias", "GptOssAttention.key.bias",
                MaxTextShape::kHeadsVector},
    MaxTextRule{"model.layers.{}.self_attn.v_proj.weight", "GptOssAttention.value.kernel",
                MaxTextShape::kHeadsOut},
    MaxTextRule{"model.layers.{}.self_attn.v_proj.bias", "GptOssAttention.value.bias",
                MaxTextShape::kHeadsVector},
    MaxTextRule{"model.layers.{}.self_attn.o_proj.weight", "GptOssAttention.out.kernel",
                MaxTextShape::kHeadsIn},
    MaxTextRule{"model.layers.{}.self_attn.o_proj.bias", "GptOssAttention.out.bias",
                MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.self_attn.sinks", "GptOssAttention.sinks", MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.mlp.router.weight", "GptOssMlp.gate.kernel",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.router.bias", "GptOssMlp.gate.bias", MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.mlp.experts.{E}.gate_proj.weight", "GptOssMlp.wi_0",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.experts.{E}.gate_proj.bias", "GptOssMlp.wi_0_bias",
                MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.mlp.experts.{E}.up_proj.weight", "GptOssMlp.wi_1",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.experts.{E}.up_proj.bias", "GptOssMlp.wi_1_bias",
                MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.mlp.experts.{E}.down_proj.weight", "GptOssMlp.wo",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.experts.{E}.down_proj.bias", "GptOssMlp.wo_bias",
                MaxTextShape::kVector}};
constexpr std::array kMaxTextRules = JoinRules(kMaxTextTablesAndTwoNorms, kMaxTextLayer);
constexpr MaxTextTree kMaxText{.rules = kMaxTextRules,
                               .blocks = MaxTextBlocks::kCycle,
                               .cycle = kPattern,
                               .window_period = kPattern};
constexpr LoraNames kLora{
    .rules = kMaxTextRules, .blocks = MaxTextBlocks::kCycle, .cycle = kPattern};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "gpt_oss",
    .models = "gpt-oss",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListLlamaRopes,
    .forward = Forward,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .maxtext = &kMaxText,
    .lora = &kLora,
};

}  // namespace tandem::engine::gpt_oss
