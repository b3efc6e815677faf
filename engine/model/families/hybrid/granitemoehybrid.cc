// Granite 4 (IBM 2025), as transformers' GraniteMoeHybridForCausalLM: Mamba-2 layers (Dao and Gu
// 2024) and some layers of attention, mostly without rope; Granite's multipliers; a shared MLP in
// every layer, and experts beside it in the larger models.

#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/io/json.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/expert_gguf.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/granite_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_layers.h"
#include "engine/model/families/hybrid/mamba_gguf.h"
#include "engine/model/families/hybrid/mamba_parts.h"
#include "engine/model/families/hybrid/recurrent_parts.h"
#include "engine/model/families/llama_decoder.h"

namespace tandem::engine::granitemoehybrid {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"GraniteMoeHybridForCausalLM",
                                                         "granitemoehybrid"};
constexpr const char* kMambaLayer = "linear_attention";

constexpr MambaKeys kMambaKeys{};

// "mamba" and "attention" are the names of transformers 4.
Json WithNewLayerTypes(Json json) {
  const auto types = json.find("layer_types");
  if (types == json.end() || !types->is_array()) return json;
  for (Json& type : *types) {
    if (type == "mamba") type = kMambaLayer;
    if (type == "attention") type = kFullLayer;
  }
  return json;
}

ModelConfig ParseConfig(const Json& given, const std::string& source) {
  const Json json = WithNewLayerTypes(given);
  ModelConfig c = ParseGranite(json, source);
  c.family = "granitemoehybrid";
  RequireMambaSilu(json, "hidden_act", source);
  const std::string positions = JsonStringOr(json, "position_embedding_type", "nope", source);
  if (positions != "rope" && positions != "nope") {
    ThrowUnsupported(source, "'position_embedding_type' other than 'rope' and 'nope'");
  }
  if (positions == "nope") {
    c.layer_ropes.assign(static_cast<size_t>(c.n_layers), ModelConfig::kNoRope);
  }
  if (JsonIntOr(json, "num_local_experts", 8, 0, 1 << 20, source) > 0) {
    ParseGraniteExperts(json, c, source);
  }
  c.ffn_dim = JsonIntOr(json, "shared_intermediate_size", 1024, 1, kMaxWidth, source);
  ParseMamba(json, kMambaKeys, c, source);
  ParseRecurrentLayers(
      json, kMambaLayer, [](int64_t) { return true; }, c, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "GraniteMoeHybridForCausalLM", "granitemoehybrid");
  WriteGraniteMultipliers(c, json);
  json["shared_intermediate_size"] = c.ffn_dim;
  if (c.experts.router.n_experts > 0) {
    WriteExperts(c, kGraniteExpertKeys, json);
  } else {
    json["num_local_experts"] = 0;
    json["num_experts_per_tok"] = 0;
  }
  json["position_embedding_type"] = c.layer_ropes.empty() ? "rope" : "nope";
  json["layer_types"] = RecurrentLayersToJson(c, kMambaLayer);
  WriteMamba(c, kMambaKeys, json);
  return json;
}

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs;
  specs.push_back(EmbeddingSpec("model.embed_tokens.weight", c.vocab_size, c.hidden_dim));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const std::string prefix = LayerPrefix(layer);
    specs.push_back(VectorSpec(prefix + "input_layernorm.weight", c.hidden_dim));
    if (c.IsRecurrent(layer)) {
      ListMamba(specs, prefix + "mamba.", c);
    } else {
      ListSelfAttention(specs, prefix + "self_attn", c, EqualBiases(c));
    }
    specs.push_back(VectorSpec(prefix + "post_attention_layernorm.weight", c.hidden_dim));
    if (c.HasExperts(layer)) ListExpertMlp(specs, prefix, c, kGraniteExperts);
    specs.push_back(
        MatrixSpec(prefix + "shared_mlp.input_linear.weight", 2 * c.ffn_dim, c.hidden_dim));
    specs.push_back(
        MatrixSpec(prefix + "shared_mlp.output_linear.weight", c.hidden_dim, c.ffn_dim));
  }
  ListHead(specs, VectorSpec("model.norm.weight", c.hidden_dim), c);
  AddGraniteStacks(c, specs);
  return specs;
}

Act SharedMlp(LayerOps& ops, WeightCursor& w, const ModelConfig& c, Act m) {
  const Act both = ops.Linear(m, w.Take(), nullptr);  // [rows, gate | up]
  const Act gate = ops.ColumnsF32(both, 0, c.ffn_dim);
  const Act up = ops.ColumnsF32(both, c.ffn_dim, c.ffn_dim);
  return ops.Linear(ops.GatedActivation(gate, up, c.activation), w.Take(), nullptr);
}

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  WeightCursor w(weights);
  const Weight& embedding = w.Take();
  Act x = Multiplied(ops, ops.Embed(embedding), c.embedding_multiplier);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const Act h = ops.RmsNorm(x, w.Take(), c.norm_eps);
    const Act mixed =
        c.IsRecurrent(layer)
            ? RunMamba(ops, w, c, h)
            : RunSelfAttention(ops, TakeSelfAttention(w, EqualBiases(c)), c, h, layer);
    x = ops.Add(x, Multiplied(ops, mixed, c.residual_multiplier));
    const Act m = ops.RmsNorm(x, w.Take(), c.norm_eps);
    Act mlp;
    if (c.HasExperts(layer)) {
      const Act chosen = RunExpertMlp(ops, m, TakeExpertMlp(w, c, kGraniteExperts), c);
      mlp = ops.Add(chosen, SharedMlp(ops, w, c, m));
    } else {
      mlp = SharedMlp(ops, w, c, m);
    }
    x = ops.Add(x, Multiplied(ops, mlp, c.residual_multiplier));
  }
  RunMultipliedHead(ops, w, embedding, c, x);
}

std::vector<RopeSpec> ListRopes(const ModelConfig& c) {
  return c.layer_ropes.empty() ? ListLlamaRopes(c) : std::vector<RopeSpec>{};
}

void ShapeTiny(ModelConfig& c) {
  c.n_layers = 4;
  ShapeTinyGranite(c);
  ShapeTinyGraniteExperts(c);
  c.layer_ropes.assign(static_cast<size_t>(c.n_layers), ModelConfig::kNoRope);
  ShapeTinyMamba(c);
  c.recurrent.layers = {true, false, true, true};
}

constexpr GgufDecoderForm kGgufForm{.heads_by_layer = true};
constexpr std::string_view kGgufHasRope = "rope.scaling.finetuned";

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, kGgufForm);
  ReadGgufMultipliers(metadata, json);
  ReadMambaGguf(metadata, kMambaKeys, json);
  const int64_t hidden = json["hidden_size"].get<int64_t>();
  const int64_t ffn = json["intermediate_size"].get<int64_t>();
  json["mamba_expand"] = MambaGgufExpansion(metadata, hidden);
  json["hidden_act"] = "silu";
  json["shared_intermediate_size"] = ffn;
  json["num_local_experts"] = 0;
  json["num_experts_per_tok"] = 0;
  if (metadata.Int("expert_count").value_or(0) > 0) {
    ReadGgufExperts(metadata, kGraniteExpertKeys, json);
    json["shared_intermediate_size"] = metadata.RequiredInt(kGgufSharedWidth);
  }
  json["position_embedding_type"] = metadata.Bool(kGgufHasRope).value_or(true) ? "rope" : "nope";
  json["layer_types"] = LayerKindsToJson(ReadGgufLayersWithoutHeads(metadata), kMambaLayer);
}

// With experts, the file's width is theirs, and the shared MLP has a key of its own.
std::vector<GgufSetting> WriteGguf(const ModelConfig& config) {
  ModelConfig c = config;
  const bool has_experts = c.experts.router.n_experts > 0;
  if (has_experts) c.ffn_dim = c.experts.ffn_dim;
  std::vector<GgufSetting> settings = GgufDecoderSizes(c, kGgufForm);
  if (has_experts) {
    AddGgufExperts(c, settings);
    settings.push_back({kGgufSharedWidth, static_cast<uint32_t>(config.ffn_dim)});
  }
  SetGgufHeadsByLayer(
      c, [](const ModelConfig& each, int64_t layer) { return !each.IsRecurrent(layer); }, settings);
  AddMambaGguf(c, settings);
  AddGgufMultipliers(c, settings);
  settings.push_back({kGgufHasRope, c.layer_ropes.empty()});
  return settings;
}

// The file has the halves of the shared MLP's first product apart. With experts they have other
// names.
int64_t HalfRows(const ModelConfig& c) { return c.ffn_dim; }
int64_t GateRow(const ModelConfig&, int64_t row) { return row; }
int64_t UpRow(const ModelConfig& c, int64_t row) { return c.ffn_dim + row; }
constexpr GgufOrder kGateRows{.count = HalfRows, .of = GateRow, .is_part = true};
constexpr GgufOrder kUpRows{.count = HalfRows, .of = UpRow, .is_part = true};

constexpr auto kGgufMixerParts =
    JoinGgufParts(kGgufPairedAttentionParts, kGgufTwoNormParts, kNamedMambaGgufParts);
constexpr auto kGgufParts = JoinGgufParts(
    kGgufMixerParts, std::to_array<GgufPart>({
                         {"ffn_gate", "shared_mlp.input_linear", GgufChange::kNone, &kGateRows},
                         {"ffn_up", "shared_mlp.input_linear", GgufChange::kNone, &kUpRows},
                         {"ffn_down", "shared_mlp.output_linear"},
                     }));
constexpr auto kGgufExpertParts =
    JoinGgufParts(kGgufMixerParts, kGgufGraniteExpertParts,
                  std::to_array<GgufPart>({
                      {"ffn_gate_shexp", "shared_mlp.input_linear", GgufChange::kNone, &kGateRows},
                      {"ffn_up_shexp", "shared_mlp.input_linear", GgufChange::kNone, &kUpRows},
                      {"ffn_down_shexp", "shared_mlp.output_linear"},
                  }));
constexpr auto kGgufLimits = std::to_array<GgufLimit>(
    {RefuseLlama3Rope, RefuseUntruncatedYarn, RequireSilu, RefuseAttentionBias, RefuseScanBiases,
     RefuseTimeStepLimit, RequireDividedScan});
constexpr GgufArchitecture kGgufWithExperts{.name = "granitehybrid",
                                            .parts = kGgufExpertParts,
                                            .ends = kGgufDecoderEnds,
                                            .block = kGgufDecoderBlock,
                                            .read_config = ReadGguf,
                                            .write_config = WriteGguf,
                                            .limits = kGgufLimits,
                                            .has_experts = true};
constexpr GgufArchitecture kGguf{.name = "granitehybrid",
                                 .parts = kGgufParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits,
                                 .with_experts = &kGgufWithExperts};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "granitemoehybrid",
    .models = "Granite 4 (hybrid)",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListRopes,
    .forward = Forward,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
};

}  // namespace tandem::engine::granitemoehybrid
