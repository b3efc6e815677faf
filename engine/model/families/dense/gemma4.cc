// Gemma 4, text (Google 2026), as transformers' Gemma4ForCausalLM. Beside Gemma 3's block of four
// norms it has: heads of another size in full-attention layers, values that may be the keys,
// a norm without scale on values, last layers that read an earlier layer's keys, a small embedding
// of the token for every layer, and a stored factor on each layer's result. Layers may have experts
// beside their MLP; checkpoints stack a layer's experts, gates above ups. Norm scales are stored as
// they are. Only the text part of Gemma4ForConditionalGeneration is read.

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/dense/gemma4_gguf.h"
#include "engine/model/families/dense/gemma_layer_parts.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_layer_heads.h"
#include "engine/model/families/hf_layers.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/maxtext_rules.h"
#include "engine/model/families/text_part.h"

namespace tandem::engine::gemma4 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kArchitectures{
    "Gemma4ForCausalLM", "gemma4_text", "Gemma4ForConditionalGeneration", "gemma4"};

constexpr double kGlobalRotaryPart = 0.25;
constexpr int64_t kGlobalHeadDim = 512;
constexpr int64_t kPattern = 6;  // every layer has a window except each sixth
constexpr ExpertNames kExpertNames{.router = "router.proj.weight", .experts = "experts"};

[[noreturn]] void ThrowBad(const std::string& source, const std::string& what) {
  throw Error(ErrorCode::kDataLoss, source + ": " + what);
}

// The rope of one layer type. Full layers rotate a share of their dimensions ("proportional").
double ParseRopePart(const Json& object, const char* type, double default_theta, double* theta,
                     const std::string& source) {
  if (!object.is_object()) {
    ThrowBad(source, "field 'rope_parameters' must have an object '" + std::string(type) + "'");
  }
  *theta = JsonNumberOr(object, "rope_theta", default_theta, 1, 1e12, source);
  const std::string kind = JsonStringOr(object, "rope_type", "default", source);
  if (kind == "default") return 1;
  if (kind != "proportional" || JsonNumberOr(object, "factor", 1, 1, 1e6, source) != 1) {
    ThrowUnsupported(source, "rope type " + Quoted(kind) + " of '" + type +
                                 "' layers; supported are 'default' and 'proportional' without "
                                 "'factor'");
  }
  return JsonNumberOr(object, "partial_rotary_factor", 1, 0, 1, source);
}

void ParseRopes(const Json& json, ModelConfig& c, const std::string& source) {
  c.rope_theta = kGlobalTheta;
  c.local_rope_theta = kLocalTheta;
  c.gemma.rotary_part = kGlobalRotaryPart;
  const auto parameters = json.find("rope_parameters");
  if (parameters == json.end() || parameters->is_null()) return;
  const auto part = [&](const char* type, double default_theta, double* theta) {
    if (!parameters->is_object() || !parameters->contains(type)) {
      ThrowBad(source, "field 'rope_parameters' must have an object '" + std::string(type) + "'");
    }
    return ParseRopePart((*parameters)[type], type, default_theta, theta, source);
  };
  c.gemma.rotary_part = part(kFullLayer, kGlobalTheta, &c.rope_theta);
  bool any_windowed = false;
  for (const bool windowed : c.windowed_layers) any_windowed = any_windowed || windowed;
  if (any_windowed && part(kWindowedLayer, kLocalTheta, &c.local_rope_theta) != 1) {
    ThrowUnsupported(source, "'partial_rotary_factor' of 'sliding_attention' layers");
  }
}

void ParseLayers(const Json& json, ModelConfig& c, const std::string& source) {
  c.attention.scale = 1;
  ParseWindowPattern(json, 512, kPattern, c, source);
  if (!c.windowed_layers.empty() && c.windowed_layers.back()) {
    ThrowBad(source, "field 'layer_types' must end with 'full_attention'");
  }
  const AttentionSpec full = ParseFullLayerHeads(
      json, {.head_dim = kGlobalHeadDim, .own_kv_heads = c.gemma.values_are_keys}, c, source);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const bool windowed = !c.windowed_layers.empty() && c.windowed_layers[layer];
    c.layer_attention.push_back(windowed ? c.attention : full);
  }
}

void RefuseOthers(const Json& json, const std::string& source) {
  const auto both_ways = json.find("use_bidirectional_attention");
  if (both_ways != json.end() && both_ways->is_string() && *both_ways == "all") {
    ThrowUnsupported(source, "'use_bidirectional_attention': \"all\"");
  }
}

// The counts have no defaults.
void ParseGemmaExperts(const Json& json, ModelConfig& c, const std::string& source) {
  if (!JsonBoolOr(json, "enable_moe_block", false, source)) return;
  for (const char* field : {kExpertKeys.count, kExpertKeys.top_k, kExpertKeys.ffn}) {
    if (!IsGiven(json, field)) {
      ThrowBad(source, std::string("'enable_moe_block' needs field '") + field + "'");
    }
  }
  c.experts = ParseExperts(json, kExpertKeys, source);
}

ModelConfig ParseConfig(const Json& outer, const std::string& source) {
  const Json json = TextConfig(outer, source);
  RefuseOthers(json, source);
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 262144,
                                .hidden_dim = 2304,
                                .ffn_dim = 9216,
                                .n_layers = 30,
                                .n_heads = 8,
                                .n_kv_heads = 4,
                                .head_dim = 256,
                                .max_context_len = 131072,
                                .tied_embeddings = true,
                                .bos = {2},
                                .eos = {1}},
                               source);
  c.family = "gemma4";
  c.activation = ParseActivation(json, "hidden_activation", "gelu_pytorch_tanh", source);
  c.logit_cap = ParseCap(json, "final_logit_softcapping", 0, source);
  c.gemma.values_are_keys = JsonBoolOr(json, "attention_k_eq_v", false, source);
  c.gemma.wide_shared_mlp = JsonBoolOr(json, "use_double_wide_mlp", false, source);
  ParseLayers(json, c, source);
  ParseRopes(json, c, source);
  ParseGemmaLayers(json, {}, c, source);
  ParseGemmaExperts(json, c, source);
  return c;
}

const AttentionSpec& FullSpec(const ModelConfig& c) { return c.layer_attention.back(); }

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Gemma4ForCausalLM", "gemma4_text");
  for (const char* key : {"hidden_act", "rope_theta", "rope_scaling"}) json.erase(key);
  json["hidden_activation"] = ActivationName(c.activation);
  json["final_logit_softcapping"] = CapToJson(c.logit_cap);
  json["sliding_window"] = c.attention.window > 0 ? Json(c.attention.window) : Json(512);
  json["layer_types"] = LayerTypesToJson(c);
  WriteFullLayerHeads(c, FullSpec(c), c.gemma.values_are_keys, json);
  json["attention_k_eq_v"] = c.gemma.values_are_keys;
  json["use_double_wide_mlp"] = c.gemma.wide_shared_mlp;
  WriteGemmaLayers(c, json);
  const bool has_experts = c.experts.router.n_experts > 0;
  json["enable_moe_block"] = has_experts;
  if (has_experts) WriteExperts(c, kExpertKeys, json);
  json["rope_parameters"] = {
      {kFullLayer,
       {{"rope_type", "proportional"},
        {"rope_theta", c.rope_theta},
        {"partial_rotary_factor", c.gemma.rotary_part}}},
      {kWindowedLayer, {{"rope_type", "default"}, {"rope_theta", c.local_rope_theta}}}};
  return json;
}

bool HasValueProjection(const ModelConfig& c, int64_t layer) {
  return !c.gemma.values_are_keys || IsWindowed(c, layer);
}

// The config of a layer's MLP.
ModelConfig MlpConfig(const ModelConfig& c, int64_t layer) {
  ModelConfig mlp = c;
  if (c.gemma.wide_shared_mlp && SharesKeys(c, layer)) mlp.ffn_dim *= 2;
  return mlp;
}

// Each projection of each expert is a part of the layer's stacked tensors.
void ListExpertBranch(std::vector<WeightSpec>& specs, const std::string& prefix,
                      const ModelConfig& c) {
  const size_t first = specs.size();
  ListExpertMlp(specs, prefix, c, kExpertNames);
  for (size_t i = first; i < specs.size(); ++i) {
    if (const auto part = StackedPart(specs[i], {}, c)) specs[i].parts = {*part};
  }
  const auto vector = [&](const char* name, int64_t n) {
    specs.push_back(VectorSpec(prefix + name, n));
  };
  vector("router.scale", c.hidden_dim);
  vector("router.per_expert_scale", c.experts.router.n_experts);
  vector("post_feedforward_layernorm_1.weight", c.hidden_dim);
  vector("pre_feedforward_layernorm_2.weight", c.hidden_dim);
  vector("post_feedforward_layernorm_2.weight", c.hidden_dim);
}

void ListLayer(std::vector<WeightSpec>& specs, const ModelConfig& c, int64_t layer) {
  const std::string prefix = LayerPrefix(layer);
  const int64_t hidden = c.hidden_dim;
  const auto norm = [&](const std::string& name, int64_t n) {
    specs.push_back(VectorSpec(name + ".weight", n));
  };
  norm(prefix + "input_layernorm", hidden);
  ListNormedAttention(specs, prefix, c, layer, HasValueProjection(c, layer));
  norm(prefix + "post_attention_layernorm", hidden);
  norm(prefix + "pre_feedforward_layernorm", hidden);
  ListGatedMlp(specs, prefix + "mlp", MlpConfig(c, layer));
  if (c.HasExperts(layer)) ListExpertBranch(specs, prefix, c);
  norm(prefix + "post_feedforward_layernorm", hidden);
  if (c.gemma.per_layer_dim > 0) ListLayerGate(specs, prefix, c);
  specs.push_back(VectorSpec(prefix + "layer_scalar", 1));
}

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs;
  specs.push_back(EmbeddingSpec("model.embed_tokens.weight", c.vocab_size, c.hidden_dim));
  if (c.gemma.per_layer_dim > 0) ListLayerInputs(specs, c);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) ListLayer(specs, c, layer);
  ListHead(specs, VectorSpec("model.norm.weight", c.hidden_dim), c);
  AddMultimodalNames(specs);
  return specs;
}

// "proportional": frequencies as for the whole head, of which the first share turns.
std::vector<RopeSpec> ListRopes(const ModelConfig& c) {
  const int64_t dim = FullSpec(c).head_dim;
  RopeSpec global = ScaledRope(dim, c.rope_theta, {});
  const auto turning =
      static_cast<size_t>(std::floor(c.gemma.rotary_part * static_cast<double>(dim) / 2));
  for (size_t i = turning; i < global.frequencies.size(); ++i) global.frequencies[i] = 0;
  global.head_dim = dim;
  RopeSpec local = ScaledRope(c.attention.head_dim, c.local_rope_theta, {});
  local.head_dim = c.attention.head_dim;
  return {std::move(global), std::move(local)};
}

// The sum of the MLP's result m and that of the experts, both normed. x is the input of both before
// their norms.
Act AddExperts(WeightCursor& w, const ModelConfig& c, Act m, Act x, LayerOps& ops) {
  const ExpertMlp experts = TakeExpertMlp(w, c, kExpertNames);
  const Act scaled = ops.Scale(ops.RmsNormF32(x, w.Take(), c.norm_eps),
                               1 / std::sqrt(static_cast<float>(c.hidden_dim)));
  const Act logits = ops.Linear(scaled, experts.router, nullptr);
  const Act chosen = ops.Route(logits, nullptr, c.experts.router);
  const Act routing = ops.ScaleExperts(chosen, w.Take());
  const Act dense = ops.RmsNormF32(m, w.Take(), c.norm_eps);
  const Act h = ops.RmsNorm(x, w.Take(), c.norm_eps);
  const Act sparse = RunChosenExperts(ops, h, routing, experts, c);
  return ops.Add(dense, ops.RmsNormF32(sparse, w.Take(), c.norm_eps));
}

Act Block(WeightCursor& w, const ModelConfig& c, Act x, Act inputs, int64_t layer,
          SharedKeysByKind& shared, LayerOps& ops) {
  const Act attn_input = ops.RmsNorm(x, w.Take(), c.norm_eps);
  const Act attended =
      RunNormedAttention(w, c, attn_input, layer, HasValueProjection(c, layer), shared, ops);
  x = ops.Add(x, ops.RmsNormF32(attended, w.Take(), c.norm_eps));
  const Act h = ops.RmsNorm(x, w.Take(), c.norm_eps);
  Act m = RunGatedMlp(ops, h, TakeGatedMlp(w, c), c);
  if (c.HasExperts(layer)) m = AddExperts(w, c, m, x, ops);
  x = ops.Add(x, ops.RmsNormF32(m, w.Take(), c.norm_eps));
  if (c.gemma.per_layer_dim > 0) x = ops.Add(x, RunLayerGate(w, c, x, inputs, layer, ops));
  return ops.ScaleBy(x, w.Take());
}

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  WeightCursor w(weights);
  const Weight& embedding = w.Take();
  Act x = ops.Scale(ops.Embed(embedding), std::sqrt(static_cast<float>(c.hidden_dim)));
  Act inputs;
  if (c.gemma.per_layer_dim > 0) inputs = RunLayerInputs(w, c, x, ops);
  SharedKeysByKind shared;
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    x = Block(w, c, x, inputs, layer, shared, ops);
  }
  RunHead(ops, w, embedding, c, x);
}

void ShapeTiny(ModelConfig& c) {
  c.n_layers = 5;
  c.norm_eps = 1e-6f;
  c.activation = Activation::kGeluTanh;
  c.tied_embeddings = true;
  c.logit_cap = 30;
  c.rope_theta = kGlobalTheta;
  c.attention.n_kv_heads = 2;
  c.attention.scale = 1;
  c.attention.window = kTinyWindow;
  c.gemma = {.per_layer_dim = 8,
             .per_layer_vocab = c.vocab_size,
             .n_shared_kv_layers = 2,
             .values_are_keys = true,
             .wide_shared_mlp = true,
             .rotary_part = 0.5};
  ShapeTinyExperts(c);
  c.experts.router.n_experts = 6;
  c.experts.router.normalise = true;
  AttentionSpec full = c.attention;
  full.head_dim = 20;
  full.n_kv_heads = 1;
  full.window = 0;
  c.windowed_layers = {true, false, true, true, false};
  for (const bool windowed : c.windowed_layers) {
    c.layer_attention.push_back(windowed ? c.attention : full);
  }
}

constexpr std::array kMaxTextEnds{
    MaxTextRule{"model.embed_tokens.weight", "token_embedder.embedding", MaxTextShape::kTable,
                MaxTextValue::kTimesRootWidth},
    MaxTextRule{"model.norm.weight", "decoder.decoder_norm.scale", MaxTextShape::kVector},
    MaxTextRule{"model.embed_tokens_per_layer.weight",
                "decoder.per_layer_embedder.embed_tokens_per_layer", MaxTextShape::kTable},
    MaxTextRule{"model.per_layer_model_projection.weight",
                "decoder.per_layer_embedder.per_layer_model_projection.kernel",
                MaxTextShape::kKernel},
    MaxTextRule{"model.per_layer_projection_norm.weight",
                "decoder.per_layer_embedder.per_layer_projection_norm.scale",
                MaxTextShape::kVector}};
constexpr std::array kMaxTextNorms{
    MaxTextRule{"model.layers.{}.input_layernorm.weight", "pre_self_attention_norm.scale",
                MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.post_attention_layernorm.weight", "post_self_attention_norm.scale",
                MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.pre_feedforward_layernorm.weight", "pre_ffw_norm.scale",
                MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.post_feedforward_layernorm.weight", "post_ffw_norm.scale",
                MaxTextShape::kVector}};
constexpr std::array kMaxTextLayer{
    MaxTextRule{"model.layers.{}.mlp.gate_proj.weight", "mlp.wi_0.kernel", MaxTextShape::kKernel,
                MaxTextValue::kAsIs, false, MaxTextWhen::kWithoutExperts},
    MaxTextRule{"model.layers.{}.mlp.gate_proj.weight", "mlp.moe_block.shared_experts.wi_0.kernel",
                MaxTextShape::kKernel, MaxTextValue::kAsIs, false, MaxTextWhen::kWithExperts},
    MaxTextRule{"model.layers.{}.experts.{E}.gate_proj.weight", "mlp.moe_block.MoeBlock_0.wi_0",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.up_proj.weight", "mlp.wi_1.kernel", MaxTextShape::kKernel,
                MaxTextValue::kAsIs, false, MaxTextWhen::kWithoutExperts},
    MaxTextRule{"model.layers.{}.mlp.up_proj.weight", "mlp.moe_block.shared_experts.wi_1.kernel",
                MaxTextShape::kKernel, MaxTextValue::kAsIs, false, MaxTextWhen::kWithExperts},
    MaxTextRule{"model.layers.{}.experts.{E}.up_proj.weight", "mlp.moe_block.MoeBlock_0.wi_1",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.down_proj.weight", "mlp.wo.kernel", MaxTextShape::kKernel,
                MaxTextValue::kAsIs, false, MaxTextWhen::kWithoutExperts},
    MaxTextRule{"model.layers.{}.mlp.down_proj.weight", "mlp.moe_block.shared_experts.wo.kernel",
                MaxTextShape::kKernel, MaxTextValue::kAsIs, false, MaxTextWhen::kWithExperts},
    MaxTextRule{"model.layers.{}.experts.{E}.down_proj.weight", "mlp.moe_block.MoeBlock_0.wo",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.router.proj.weight", "mlp.moe_block.MoeBlock_0.gate.kernel",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.router.per_expert_scale",
                "mlp.moe_block.MoeBlock_0.per_expert_scale", MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.router.scale", "mlp.pre_forward_scale_2", MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.post_feedforward_layernorm_1.weight",
                "mlp.post_feedforward_layernorm_1.scale", MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.pre_feedforward_layernorm_2.weight",
                "mlp.pre_feedforward_layernorm_2.scale", MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.post_feedforward_layernorm_2.weight",
                "mlp.post_feedforward_layernorm_2.scale", MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.layer_scalar", "layer_scalar", MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.per_layer_input_gate.weight", "per_layer_input_gate.kernel",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.per_layer_projection.weight", "per_layer_projection.kernel",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.post_per_layer_input_norm.weight",
                "post_per_layer_input_norm.scale", MaxTextShape::kVector}};
constexpr std::array kMaxTextRules =
    JoinRules(kMaxTextEnds, kMaxTextNorms, kMaxTextQueryAndKey, kMaxTextValueAndOut,
              kMaxTextHeadNorms, kMaxTextLayer);

// The small models (E2B, E4B) have windows of their own pattern and no scanned layers.
std::string MaxTextLimit(const ModelConfig& c, bool is_scanned) {
  const bool is_small = c.gemma.per_layer_dim > 0 || c.gemma.n_shared_kv_layers > 0;
  if (is_small && is_scanned) {
    return "a Gemma with embeddings or keys that layers share has no scanned layers; choose the "
           "unscanned layout";
  }
  constexpr int64_t kSmallPattern = 5;
  if (FollowsPattern(c, kPattern) || (is_small && FollowsPattern(c, kSmallPattern))) return "";
  return "the sliding windows are on other layers than in MaxText, where each sixth has none";
}

constexpr MaxTextTree kMaxText{
    .rules = kMaxTextRules, .blocks = MaxTextBlocks::kNestedSixes, .limit = MaxTextLimit};
constexpr LoraNames kLora{.rules = kMaxTextRules, .blocks = MaxTextBlocks::kSixes};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "gemma4",
    .models = "Gemma 4",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListRopes,
    .forward = Forward,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .maxtext = &kMaxText,
    .lora = &kLora,
};

}  // namespace tandem::engine::gemma4
