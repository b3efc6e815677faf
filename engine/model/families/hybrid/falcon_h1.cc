// Falcon-H1 (TII 2025), as transformers' FalconH1ForCausalLM: attention and a Mamba-2 mixer read
// one norm in every layer and are added, then a gated MLP. Fixed multipliers scale each branch.

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/io/json.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/hybrid/mamba_gguf.h"
#include "engine/model/families/hybrid/mamba_parts.h"
#include "engine/model/families/llama_decoder.h"

namespace tandem::engine::falcon_h1 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"FalconH1ForCausalLM", "falcon_h1"};
constexpr MambaKeys kKeys{.width = "mamba_d_ssm", .default_width = 1024};

float Multiplier(const Json& json, const char* field, const std::string& source) {
  return static_cast<float>(JsonNumberOr(json, field, 1, -1e6, 1e6, source));
}

// A list of as many numbers as `into` has; absent: ones.
void ParseMultipliers(const Json& json, const char* field, std::span<float* const> into,
                      const std::string& source) {
  const auto list = json.find(field);
  if (list == json.end() || list->is_null()) return;
  if (!list->is_array() || list->size() != into.size()) {
    throw Error(ErrorCode::kDataLoss, source + ": field '" + field + "' must be a list of " +
                                          std::to_string(into.size()) + " numbers");
  }
  for (size_t i = 0; i < into.size(); ++i) {
    Json wrapped = Json::object();
    wrapped[field] = (*list)[i];
    *into[i] = static_cast<float>(JsonNumberOr(wrapped, field, 1, -1e6, 1e6, source));
  }
}

void ParseBranches(const Json& json, ModelConfig& c, const std::string& source) {
  BranchMultipliers& by = c.branches;
  c.embedding_multiplier = Multiplier(json, "embedding_multiplier", source);
  c.logit_multiplier = Multiplier(json, "lm_head_multiplier", source);
  by.attention_in = Multiplier(json, "attention_in_multiplier", source);
  by.attention_out = Multiplier(json, "attention_out_multiplier", source);
  by.keys = Multiplier(json, "key_multiplier", source);
  by.scan_in = Multiplier(json, "ssm_in_multiplier", source);
  by.scan_out = Multiplier(json, "ssm_out_multiplier", source);
  const std::array<float*, 2> mlp{&by.mlp_gate, &by.mlp_down};
  ParseMultipliers(json, "mlp_multipliers", mlp, source);
  std::array<float*, 5> parts{};
  for (size_t i = 0; i < parts.size(); ++i) parts[i] = &by.scan_parts[i];
  ParseMultipliers(json, "ssm_multipliers", parts, source);
}

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 128000,
                                .ffn_dim = 14336,
                                .n_kv_heads = 8,
                                .max_context_len = 8192,
                                .norm_eps = 1e-5,
                                .bos = {1},
                                .eos = {2}},
                               source);
  c.family = "falcon_h1";
  ParseRope(json, 10000, c, source);
  c.activation = Activation::kSilu;
  RequireMambaSilu(json, "hidden_act", source);
  c.mlp_bias = JsonBoolOr(json, "mlp_bias", false, source);
  ParseBranches(json, c, source);
  ParseMamba(json, kKeys, c, source);
  c.recurrent.out_bias = JsonBoolOr(json, "projectors_bias", false, source);
  const bool is_before = JsonBoolOr(json, "mamba_norm_before_gate", true, source);
  c.recurrent.norm = !JsonBoolOr(json, "mamba_rms_norm", false, source) ? ScanNorm::kNone
                     : is_before                                        ? ScanNorm::kBeforeGate
                                                                        : ScanNorm::kAfterGate;
  c.recurrent.layers.assign(static_cast<size_t>(c.n_layers), true);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  const BranchMultipliers& by = c.branches;
  Json json = WriteDecoder(c, "FalconH1ForCausalLM", "falcon_h1");
  json["mlp_bias"] = c.mlp_bias;
  WriteMamba(c, kKeys, json);
  json["projectors_bias"] = c.recurrent.out_bias;
  json["mamba_rms_norm"] = c.recurrent.norm != ScanNorm::kNone;
  json["mamba_norm_before_gate"] = c.recurrent.norm != ScanNorm::kAfterGate;
  json["embedding_multiplier"] = ShortestDouble(c.embedding_multiplier);
  json["lm_head_multiplier"] = ShortestDouble(c.logit_multiplier);
  json["attention_in_multiplier"] = ShortestDouble(by.attention_in);
  json["attention_out_multiplier"] = ShortestDouble(by.attention_out);
  json["key_multiplier"] = ShortestDouble(by.keys);
  json["ssm_in_multiplier"] = ShortestDouble(by.scan_in);
  json["ssm_out_multiplier"] = ShortestDouble(by.scan_out);
  json["mlp_multipliers"] = Json::array({ShortestDouble(by.mlp_gate), ShortestDouble(by.mlp_down)});
  json["ssm_multipliers"] = Json::array();
  for (const float part : by.scan_parts) json["ssm_multipliers"].push_back(ShortestDouble(part));
  return json;
}

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs;
  specs.push_back(EmbeddingSpec("model.embed_tokens.weight", c.vocab_size, c.hidden_dim));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const std::string prefix = LayerPrefix(layer);
    specs.push_back(VectorSpec(prefix + "input_layernorm.weight", c.hidden_dim));
    ListMamba(specs, prefix + "mamba.", c);
    ListSelfAttention(specs, prefix + "self_attn", c, EqualBiases(c));
    specs.push_back(VectorSpec(prefix + "pre_ff_layernorm.weight", c.hidden_dim));
    ListGatedMlp(specs, prefix + "feed_forward", c);
  }
  ListHead(specs, VectorSpec("model.final_layernorm.weight", c.hidden_dim), c);
  return specs;
}

Act Attend(LayerOps& ops, const SelfAttention& attention, const ModelConfig& c, Act h,
           int64_t layer) {
  const Act in = Multiplied(ops, h, c.branches.attention_in);
  const Act q = ops.Rope(Project(ops, in, attention.q), 0);
  const Act key = Multiplied(ops, Project(ops, in, attention.k), c.branches.keys);
  const Act k = ops.Rope(key, 0);
  const Act v = Project(ops, in, attention.v);
  return Project(ops, ops.Attention(q, k, v, c.attention, layer), attention.o);
}

Act Mlp(LayerOps& ops, const GatedMlp& mlp, const ModelConfig& c, Act m) {
  const Act gate = Multiplied(ops, Project(ops, m, mlp.gate), c.branches.mlp_gate);
  const Act up = Project(ops, m, mlp.up);
  const Act down = Project(ops, ops.GatedActivation(gate, up, c.activation), mlp.down);
  return Multiplied(ops, down, c.branches.mlp_down);
}

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  WeightCursor w(weights);
  const Weight& embedding = w.Take();
  Act x = Multiplied(ops, ops.Embed(embedding), c.embedding_multiplier);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const Act h = ops.RmsNormF32(x, w.Take(), c.norm_eps);
    const Act scanned = RunMamba(ops, w, c, Multiplied(ops, h, c.branches.scan_in));
    const Act attended = Attend(ops, TakeSelfAttention(w, EqualBiases(c)), c, h, layer);
    const Act mixed = ops.Add(Multiplied(ops, scanned, c.branches.scan_out),
                              Multiplied(ops, attended, c.branches.attention_out));
    x = ops.Add(x, mixed);
    const Act m = ops.RmsNorm(x, w.Take(), c.norm_eps);
    x = ops.Add(x, Mlp(ops, TakeGatedMlp(w, c), c, m));
  }
  RunMultipliedHead(ops, w, embedding, c, x);
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.attention_bias = true;
  c.mlp_bias = true;
  c.embedding_multiplier = 5;
  c.logit_multiplier = 0.5f;
  c.branches = {.attention_in = 0.75f,
                .attention_out = 0.9f,
                .keys = 0.4f,
                .scan_in = 1.25f,
                .scan_out = 0.2f,
                .mlp_gate = 0.9f,
                .mlp_down = 0.3f,
                .scan_parts = {0.3f, 0.25f, 0.2f, 0.5f, 0.35f}};
  ShapeTinyMamba(c);
  c.recurrent.in_bias = c.recurrent.out_bias = true;
  c.recurrent.norm = ScanNorm::kBeforeGate;
  c.recurrent.layers.assign(static_cast<size_t>(c.n_layers), true);
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  ReadMambaGguf(metadata, kKeys, json);
  json[kKeys.width] = metadata.RequiredInt("ssm.inner_size");
  json["mamba_rms_norm"] = metadata.HasTensor("blk.0.ssm_norm.weight");
  json["mamba_norm_before_gate"] = false;
  json["hidden_act"] = "silu";
  json["mlp_bias"] = false;
  json["projectors_bias"] = false;
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = GgufDecoderSizes(c);
  AddMambaGguf(c, settings);
  return settings;
}

// Of a row of a scan's input: its gate, x, B, C or dt.
float ScanFactor(const ModelConfig& c, int64_t row) {
  const ScanSpec& scan = c.recurrent.scan;
  const int64_t states = scan.n_groups * scan.state_dim;
  size_t part = 0;
  for (const int64_t size : {scan.outputs(), scan.outputs(), states, states}) {
    if (row < size) break;
    row -= size;
    ++part;
  }
  return c.branches.scan_parts[part];
}

// Files have the multipliers within the weights, as llama.cpp's converter writes them.
float GgufFactor(const ModelConfig& c, std::string_view weight, int64_t row) {
  const BranchMultipliers& by = c.branches;
  if (weight == "model.embed_tokens.weight") return c.embedding_multiplier;
  if (weight == "lm_head.weight") return c.logit_multiplier;
  if (weight.ends_with("self_attn.q_proj.weight")) return by.attention_in;
  if (weight.ends_with("self_attn.k_proj.weight")) return by.attention_in * by.keys;
  if (weight.ends_with("self_attn.v_proj.weight")) return by.attention_in;
  if (weight.ends_with("self_attn.o_proj.weight")) return by.attention_out;
  if (weight.ends_with("mamba.in_proj.weight")) return by.scan_in * ScanFactor(c, row);
  if (weight.ends_with("mamba.out_proj.weight")) return by.scan_out;
  if (weight.ends_with("feed_forward.gate_proj.weight")) return by.mlp_gate;
  if (weight.ends_with("feed_forward.down_proj.weight")) return by.mlp_down;
  return 1;
}

ModelConfig Folded(const ModelConfig& config) {
  ModelConfig c = config;
  c.branches = {};
  c.embedding_multiplier = c.logit_multiplier = 1;
  return c;
}

std::string RefuseNormBeforeGate(const ModelConfig& c) {
  return c.recurrent.norm == ScanNorm::kBeforeGate ? "'mamba_norm_before_gate'" : "";
}
std::string RefuseTiedMultipliers(const ModelConfig& c) {
  return c.tied_embeddings && c.embedding_multiplier != c.logit_multiplier
             ? "tied embeddings with another multiplier than the head's"
             : "";
}

constexpr auto kGgufParts =
    JoinGgufParts(kGgufAttentionParts, kNamedMambaGgufParts,
                  std::to_array<GgufPart>({
                      {"attn_norm", "input_layernorm"},
                      {"ffn_norm", "pre_ff_layernorm.weight"},  // the file's name has no ".weight"
                      {"ffn_gate", "feed_forward.gate_proj"},
                      {"ffn_up", "feed_forward.up_proj"},
                      {"ffn_down", "feed_forward.down_proj"},
                  }));
constexpr auto kGgufEnds = std::to_array<GgufPart>({
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.final_layernorm"},
    {"output", "lm_head"},
});
constexpr auto kGgufLimits = std::to_array<GgufLimit>(
    {RefuseUntruncatedYarn, RefuseAttentionBias, RefuseMlpBias, RefuseScanBiases,
     RefuseTimeStepLimit, RequireDividedScan, RefuseNormBeforeGate, RefuseTiedMultipliers});
constexpr GgufArchitecture kGguf{.name = "falcon-h1",
                                 .parts = kGgufParts,
                                 .ends = kGgufEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits,
                                 .factor = GgufFactor,
                                 .folded = Folded};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "falcon_h1",
    .models = "Falcon-H1",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListLlamaRopes,
    .forward = Forward,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
};

}  // namespace tandem::engine::falcon_h1
