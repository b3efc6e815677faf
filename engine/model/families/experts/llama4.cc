// Llama 4 (Meta 2025), text, as transformers' Llama4ForCausalLM: interleaved rope, heads of q and k
// of length one after it, attention within chunks on these layers; layers without rope whose
// queries grow with the position. An expert's input is multiplied by its score, not its output.

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/io/json.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/expert_gguf.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_layers.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/text_part.h"

namespace tandem::engine::llama4 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kArchitectures{
    "Llama4ForCausalLM", "llama4_text", "Llama4ForConditionalGeneration", "llama4"};
constexpr const char* kChunkedLayer = "chunked_attention";
constexpr ExpertKeys kKeys{.count = "num_local_experts",
                           .other_count = "num_local_experts",
                           .ffn = "intermediate_size",
                           .n_experts = 16,
                           .n_chosen = 1,
                           .fixes_norm = true,
                           .ffn_dim = 8192};
constexpr ExpertNames kNames{.router = "feed_forward.router.weight",
                             .experts = "feed_forward.experts",
                             .shared = "feed_forward.shared_expert"};

// Sets the attention of each layer. Without `layer_types`, layers with rope are chunked.
void ParseChunks(const Json& json, ModelConfig& c, const std::string& source) {
  const bool is_null = IsNull(json, "attention_chunk_size");
  const int64_t chunk =
      is_null ? 0 : JsonIntOr(json, "attention_chunk_size", 8192, 1, kMaxContext, source);
  const auto given = ParseLayerKinds(json, kChunkedLayer, c.n_layers, source);
  c.layer_attention.assign(static_cast<size_t>(c.n_layers), c.attention);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const bool is_chunked =
        given ? (*given)[static_cast<size_t>(layer)] : c.LayerRope(layer) != ModelConfig::kNoRope;
    if (!is_chunked) continue;
    if (chunk == 0) {
      throw Error(ErrorCode::kDataLoss, source +
                                            ": field 'attention_chunk_size' is null, but layer " +
                                            std::to_string(layer) + " has chunked attention");
    }
    if (chunk % kTokensPerBlock != 0) {
      ThrowUnsupported(source, "'attention_chunk_size' " + std::to_string(chunk) +
                                   ", which is no multiple of " + std::to_string(kTokensPerBlock));
    }
    c.layer_attention[static_cast<size_t>(layer)].chunk = chunk;
  }
}

// Older files have a number in place of true.
bool IsTuned(const Json& json, const std::string& source) {
  const auto tuned = json.find("attn_temperature_tuning");
  if (tuned != json.end() && tuned->is_number_integer()) return *tuned != 0;
  return JsonBoolOr(json, "attn_temperature_tuning", true, source);
}

void ParseExpertLayers(const Json& json, ModelConfig& c, const std::string& source) {
  c.experts = ParseExperts(json, kKeys, source);
  c.experts.router.score = RouterScore::kSigmoid;
  c.experts.shared_ffn_dim = c.experts.ffn_dim;
  std::vector<bool>& layers = c.experts.layers;
  if (const auto listed = ParseLayerNumbers(json, "moe_layers", c.n_layers - 1, source)) {
    layers.assign(static_cast<size_t>(c.n_layers), false);
    for (const int64_t layer : *listed) layers[static_cast<size_t>(layer)] = true;
    return;
  }
  const int64_t step = JsonIntOr(json, "interleave_moe_layer_step", 1, 1, kMaxLayers, source);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) layers.push_back((layer + 1) % step == 0);
}

ModelConfig ParseConfig(const Json& given, const std::string& source) {
  Json json = TextConfig(given, source);
  // An empty list is none.
  if (IsGiven(json, "no_rope_layers") && json["no_rope_layers"] == Json::array()) {
    json.erase("no_rope_layers");
  }
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 202048,
                                .hidden_dim = 5120,
                                .ffn_dim = 8192,
                                .n_layers = 48,
                                .n_heads = 40,
                                .n_kv_heads = 8,
                                .head_dim = 128,
                                .max_context_len = 131072,
                                .norm_eps = 1e-5,
                                .bos = {1},
                                .eos = {2}},
                               source);
  c.family = "llama4";
  ParseRope(json, 500000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  c.qk_norm = JsonBoolOr(json, "use_qk_norm", true, source);
  c.query_growth_period = JsonIntOr(json, "floor_scale", 8192, 1, kMaxContext, source);
  const double growth = JsonNumberOr(json, "attn_scale", 0.1, 0, 1e3, source);
  c.query_growth = IsTuned(json, source) ? growth : 0;
  ParseExpertLayers(json, c, source);
  c.ffn_dim = JsonIntOr(json, "intermediate_size_mlp", 16384, 1, kMaxWidth, source);
  ParseRopeLayers(json, c, source);
  ParseChunks(json, c, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Llama4ForCausalLM", "llama4_text");
  WriteExperts(c, kKeys, json);
  json["intermediate_size_mlp"] = c.ffn_dim;
  json["use_qk_norm"] = c.qk_norm;
  json["attn_temperature_tuning"] = c.query_growth > 0;
  if (c.query_growth > 0) json["attn_scale"] = c.query_growth;
  json["floor_scale"] = c.query_growth_period;
  json["attention_chunk_size"] = nullptr;
  json["moe_layers"] = Json::array();
  json["no_rope_layers"] = RopeLayersToJson(c);
  std::vector<bool> chunked;
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const int64_t chunk = c.LayerAttention(layer).chunk;
    if (c.HasExperts(layer)) json["moe_layers"].push_back(layer);
    chunked.push_back(chunk > 0);
    if (chunk > 0) json["attention_chunk_size"] = chunk;
  }
  json["layer_types"] = LayerKindsToJson(chunked, kChunkedLayer);
  return json;
}

// Each projection of each expert is a part of the layer's stacked tensors, gates before ups. In a
// multimodal model these lie in its language model.
void AddStacks(const ModelConfig& c, std::vector<WeightSpec>& specs) {
  for (WeightSpec& spec : specs) {
    auto part = StackedPart(spec, {}, c);
    if (!part) continue;
    part->transposed = true;
    spec.parts = {*part};
    part->tensor = "language_model." + part->tensor;
    spec.parts.push_back(*std::move(part));
  }
}

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs;
  specs.push_back(EmbeddingSpec("model.embed_tokens.weight", c.vocab_size, c.hidden_dim));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const std::string prefix = LayerPrefix(layer);
    specs.push_back(VectorSpec(prefix + "input_layernorm.weight", c.hidden_dim));
    ListSelfAttention(specs, prefix + "self_attn", c, EqualBiases(c));
    specs.push_back(VectorSpec(prefix + "post_attention_layernorm.weight", c.hidden_dim));
    if (c.HasExperts(layer)) {
      ListExpertMlp(specs, prefix, c, kNames);
    } else {
      ListGatedMlp(specs, prefix + "feed_forward", c);
    }
  }
  ListHead(specs, VectorSpec("model.norm.weight", c.hidden_dim), c);
  AddMultimodalNames(specs);
  AddStacks(c, specs);
  return specs;
}

// The second table does not rotate: it multiplies the queries of layers without rope.
std::vector<RopeSpec> ListRopes(const ModelConfig& c) {
  std::vector<RopeSpec> ropes = ListInterleavedRopes(c);
  if (c.query_growth > 0) {
    RopeSpec growth;
    growth.frequencies.assign(static_cast<size_t>(c.attention.head_dim / 2), 0.0);
    growth.interleaved = true;
    growth.growth = c.query_growth;
    growth.growth_period = c.query_growth_period;
    growth.growth_shift = 1;
    ropes.push_back(std::move(growth));
  }
  return ropes;
}

Act Attend(LayerOps& ops, const SelfAttention& attention, const ModelConfig& c, Act h,
           int64_t layer) {
  Act q = Project(ops, h, attention.q), k = Project(ops, h, attention.k);
  if (c.LayerRope(layer) != ModelConfig::kNoRope) {
    const auto rotate = [&](Act x) {
      if (!c.qk_norm) return ops.Rope(x, 0);
      return ops.PlainRmsNorm(ops.RopeF32(x, 0), c.attention.head_dim, c.norm_eps);
    };
    q = rotate(q);
    k = rotate(k);
  } else if (c.query_growth > 0) {
    q = ops.Rope(q, 1);
  }
  const Act v = Project(ops, h, attention.v);
  return Project(ops, ops.Attention(q, k, v, c.LayerAttention(layer), layer), attention.o);
}

// The routing of one slot.
Act SlotRouting(LayerOps& ops, Act routing, int64_t slot, int64_t top_k) {
  if (top_k == 1) return routing;
  const Act id = ops.ColumnsF32(routing, slot, 1);
  return ops.JoinHeads(id, ops.ColumnsF32(routing, top_k + slot, 1), 1, 1);
}

// `m` is f32. With one slot, Combine is the product of a row and its weight.
Act Experts(LayerOps& ops, const ExpertMlp& mlp, const ModelConfig& c, Act m) {
  const RouterSpec& router = c.experts.router;
  const Act routing = ops.Route(ops.Linear(m, mlp.router, nullptr), nullptr, router);
  const Act shared_gate = ops.Linear(m, *mlp.shared_gate, nullptr);
  const Act shared_up = ops.Linear(m, *mlp.shared_up, nullptr);
  const Act act = ops.GatedActivation(shared_gate, shared_up, c.activation);
  Act sum = ops.Linear(act, *mlp.shared_down, nullptr);
  for (int64_t slot = 0; slot < router.top_k; ++slot) {
    const Act one = SlotRouting(ops, routing, slot, router.top_k);
    const Act x = ops.Combine(m, one);
    const Act gate = ops.ExpertLinear(x, one, mlp.gates, {});
    const Act up = ops.ExpertLinear(x, one, mlp.ups, {});
    const Act hidden = ops.GatedActivation(gate, up, c.activation);
    sum = ops.Add(sum, ops.ExpertLinear(hidden, one, mlp.downs, {}));
  }
  return sum;
}

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  WeightCursor w(weights);
  const Weight& embedding = w.Take();
  Act x = ops.Embed(embedding);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const Act h = ops.RmsNorm(x, w.Take(), c.norm_eps);
    x = ops.Add(x, Attend(ops, TakeSelfAttention(w, EqualBiases(c)), c, h, layer));
    const Act m = ops.RmsNormF32(x, w.Take(), c.norm_eps);
    x = ops.Add(x, c.HasExperts(layer) ? Experts(ops, TakeExpertMlp(w, c, kNames), c, m)
                                       : RunGatedMlp(ops, m, TakeGatedMlp(w, c), c));
  }
  RunHead(ops, w, embedding, c, x);
}

void ShapeTiny(ModelConfig& c) {
  c.n_layers = 4;
  c.attention.n_kv_heads = 2;
  c.attention_bias = true;
  c.rope_theta = 500000;
  c.qk_norm = true;
  c.query_growth = 0.1;
  c.query_growth_period = 8;
  ShapeTinyExperts(c);
  c.experts.router.top_k = 2;
  c.experts.router.score = RouterScore::kSigmoid;
  c.experts.shared_ffn_dim = c.experts.ffn_dim;
  c.experts.layers = {true, false, true, true};
  c.layer_ropes = {0, 0, 0, ModelConfig::kNoRope};
  c.layer_attention.assign(static_cast<size_t>(c.n_layers), c.attention);
  for (size_t layer = 0; layer < 3; ++layer) c.layer_attention[layer].chunk = 2 * kTokensPerBlock;
}

// Readers fix what the file does not state: the lengths, and which layers have rope.
constexpr int64_t kGgufChunk = 8192;
constexpr double kGgufGrowth = 0.1;
constexpr int64_t kGgufUnnormedExperts = 128;

constexpr auto kGgufParts =
    JoinGgufParts(kGgufAttentionParts, kGgufTwoNormParts,
                  std::to_array<GgufPart>({
                      {"ffn_gate", "feed_forward.gate_proj"},
                      {"ffn_up", "feed_forward.up_proj"},
                      {"ffn_down", "feed_forward.down_proj"},
                      {"ffn_gate_inp", "feed_forward.router"},
                      {"ffn_gate_exps", "feed_forward.experts.{E}.gate_proj"},
                      {"ffn_up_exps", "feed_forward.experts.{E}.up_proj"},
                      {"ffn_down_exps", "feed_forward.experts.{E}.down_proj"},
                      {"ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"},
                      {"ffn_up_shexp", "feed_forward.shared_expert.up_proj"},
                      {"ffn_down_shexp", "feed_forward.shared_expert.down_proj"},
                  }));

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  if (metadata.Int(kGgufWindow) == 0) {
    metadata.Unsupported(kGgufWindow, "is 0: only models with chunks are supported");
  }
  ReadGgufDecoder(metadata, json);
  ReadGgufExperts(metadata, kKeys, json);
  json["intermediate_size_mlp"] = json["intermediate_size"];
  ReadGgufExpertWidths(metadata, kKeys, json);
  json["interleave_moe_layer_step"] = metadata.RequiredInt(kGgufExpertStep);
  json["no_rope_layer_interval"] = kNoRopeInterval;
  json["attention_chunk_size"] = kGgufChunk;
  json["floor_scale"] = kGgufChunk;
  json["attn_scale"] = kGgufGrowth;
  json["use_qk_norm"] = json["num_local_experts"] != kGgufUnnormedExperts;
}

// The distance of layers with experts; 0 where it is not the same.
int64_t ExpertStep(const ModelConfig& c) {
  const int64_t step = FirstExpertLayer(c) + 1;
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    if (c.HasExperts(layer) != ((layer + 1) % step == 0)) return 0;
  }
  return step;
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = WriteGgufExpertDecoder(c);
  settings.push_back({kGgufExpertStep, static_cast<uint32_t>(ExpertStep(c))});
  return settings;
}

std::string RequireChunkPattern(const ModelConfig& c) {
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const bool rotates = c.LayerRope(layer) != ModelConfig::kNoRope;
    if (rotates != ((layer + 1) % kNoRopeInterval != 0)) {
      return "rope in other layers than all but each fourth ('no_rope_layers')";
    }
    if (c.LayerAttention(layer).chunk != (rotates ? kGgufChunk : 0)) {
      return "chunks other than 8192 positions in the layers with rope ('attention_chunk_size')";
    }
  }
  return "";
}

std::string RequireGrowth(const ModelConfig& c) {
  const bool is_fixed = c.query_growth == kGgufGrowth && c.query_growth_period == kGgufChunk;
  return is_fixed ? "" : "'attn_scale' other than 0.1, or 'floor_scale' other than 8192";
}

std::string RequireNormsByExperts(const ModelConfig& c) {
  const bool has_norms = c.experts.router.n_experts != kGgufUnnormedExperts;
  return c.qk_norm == has_norms ? "" : "'use_qk_norm' " + std::string(c.qk_norm ? "true" : "false");
}

std::string RequireExpertStep(const ModelConfig& c) {
  return ExpertStep(c) > 0 ? "" : "experts in irregular layers ('moe_layers')";
}

constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RequireChunkPattern, RequireGrowth, RequireNormsByExperts,
                              RequireExpertStep, RefuseAttentionBias, RequireSilu});
constexpr GgufArchitecture kGguf{.name = "llama4",
                                 .parts = kGgufParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits,
                                 .has_experts = true};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "llama4",
    .models = "Llama 4 (text)",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListRopes,
    .forward = Forward,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
};

}  // namespace tandem::engine::llama4
