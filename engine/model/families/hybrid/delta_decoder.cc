#include "engine/model/families/hybrid/delta_decoder.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/io/json.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/hybrid/recurrent_parts.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDeltaLayer = "linear_attention";

// Channels of the convolution: all q, all k, all v.
int64_t KeyDim(const DeltaSpec& d) { return d.n_k_heads * d.k_dim; }

Json WithoutImagePositions(const Json& json) {
  Json text = json;
  // Text has the same position on all three axes, so the sections change nothing.
  for (const char* field : {"rope_parameters", "rope_scaling"}) {
    const auto rope = text.find(field);
    if (rope == text.end() || !rope->is_object()) continue;
    rope->erase("mrope_section");
    rope->erase("mrope_interleaved");
  }
  return text;
}

void ListDeltaNet(std::vector<WeightSpec>& specs, const std::string& prefix, const ModelConfig& c,
                  const DeltaTraits& traits) {
  const DeltaSpec& d = c.recurrent.delta;
  const int64_t hidden = c.hidden_dim;
  const std::string name = prefix + "linear_attn.";
  if (traits.is_fused) {
    specs.push_back(
        MatrixSpec(name + "in_proj_qkvz.weight", 2 * KeyDim(d) + 2 * d.outputs(), hidden));
    specs.push_back(MatrixSpec(name + "in_proj_ba.weight", 2 * d.n_v_heads, hidden));
  } else {
    specs.push_back(MatrixSpec(name + "in_proj_qkv.weight", d.inputs(), hidden));
    specs.push_back(MatrixSpec(name + "in_proj_z.weight", d.outputs(), hidden));
    specs.push_back(MatrixSpec(name + "in_proj_b.weight", d.n_v_heads, hidden));
    specs.push_back(MatrixSpec(name + "in_proj_a.weight", d.n_v_heads, hidden));
  }
  specs.push_back(ConvSpecOf(name + "conv1d.weight", c.recurrent.conv));
  specs.push_back(VectorSpec(name + "dt_bias", d.n_v_heads));
  specs.push_back(VectorSpec(name + "A_log", d.n_v_heads));
  specs.push_back(VectorSpec(name + "norm.weight", d.v_dim));
  specs.push_back(MatrixSpec(name + "out_proj.weight", hidden, d.outputs()));
}

void ListGatedAttention(std::vector<WeightSpec>& specs, const std::string& prefix,
                        const ModelConfig& c) {
  const AttentionSpec& a = c.attention;
  const AttentionBiases biases = EqualBiases(c);
  const int64_t hidden = c.hidden_dim;
  const int64_t q_dim = a.n_heads * a.head_dim, kv_dim = a.n_kv_heads * a.head_dim;
  const std::string name = prefix + "self_attn.";
  ListProjection(specs, name + "q_proj", 2 * q_dim, hidden, biases.qkv);
  ListProjection(specs, name + "k_proj", kv_dim, hidden, biases.qkv);
  ListProjection(specs, name + "v_proj", kv_dim, hidden, biases.qkv);
  ListProjection(specs, name + "o_proj", hidden, q_dim, biases.o);
  specs.push_back(OffsetNormSpec(name + "q_norm.weight", a.head_dim));
  specs.push_back(OffsetNormSpec(name + "k_norm.weight", a.head_dim));
}

struct DeltaInput {
  Act qkv, z, b, a;
};

DeltaInput SplitInput(LayerOps& ops, WeightCursor& w, Act h) {
  const Act qkv = ops.Linear(h, w.Take(), nullptr);
  const Act z = ops.Linear(h, w.Take(), nullptr);
  const Act b = ops.Linear(h, w.Take(), nullptr);
  return {qkv, z, b, ops.Linear(h, w.Take(), nullptr)};
}

// Each key head's q and k, then the v and z of its value heads.
DeltaInput FusedInput(LayerOps& ops, WeightCursor& w, const DeltaSpec& d, Act h) {
  const int64_t heads = d.n_k_heads, group = d.n_v_heads / heads, values = group * d.v_dim;
  const Act all = ops.Linear(h, w.Take(), nullptr);
  const Act ba = ops.Linear(h, w.Take(), nullptr);
  const Act q = ops.SliceHeads(all, heads, 0, d.k_dim);
  const Act k = ops.SliceHeads(all, heads, d.k_dim, d.k_dim);
  const Act v = ops.SliceHeads(all, heads, 2 * d.k_dim, values);
  const Act z = ops.SliceHeads(all, heads, 2 * d.k_dim + values, values);
  const Act qk = ops.JoinHeads(q, k, 1, KeyDim(d));
  return {ops.JoinHeads(qk, v, 1, d.outputs()), z, ops.SliceHeads(ba, heads, 0, group),
          ops.SliceHeads(ba, heads, group, group)};
}

Act DeltaNet(LayerOps& ops, WeightCursor& w, const ModelConfig& c, const DeltaTraits& traits,
             Act h) {
  const DeltaSpec& d = c.recurrent.delta;
  const DeltaInput in = traits.is_fused ? FusedInput(ops, w, d, h) : SplitInput(ops, w, h);
  const Act qkv = ops.CausalConv(in.qkv, w.Take(), nullptr, c.recurrent.conv);
  const Weight& dt_bias = w.Take();
  const Weight& a_log = w.Take();
  const Act y = ops.GatedDelta(qkv, in.a, in.b, a_log, dt_bias, d);  // [rows, n_v_heads * v_dim]
  const Act normed = ops.RmsNormF32(y, w.Take(), c.norm_eps);
  return ops.Linear(ops.Gate(normed, in.z, GateForm::kSilu), w.Take(), nullptr);
}

Act GatedAttention(LayerOps& ops, WeightCursor& w, const ModelConfig& c, Act h, int64_t layer) {
  const AttentionSpec& a = c.attention;
  const SelfAttention attention = TakeSelfAttention(w, EqualBiases(c));
  const Weight& q_norm = w.Take();
  const Weight& k_norm = w.Take();
  const Act both = Project(ops, h, attention.q);  // of each head: the query, then the gate
  const Act query = ops.SliceHeads(both, a.n_heads, 0, a.head_dim);
  const Act gate = ops.SliceHeads(both, a.n_heads, a.head_dim, a.head_dim);
  const Act q = ops.Rope(ops.RmsNormF32(query, q_norm, c.norm_eps), 0);
  const Act k = ops.Rope(ops.RmsNormF32(Project(ops, h, attention.k), k_norm, c.norm_eps), 0);
  const Act v = Project(ops, h, attention.v);
  const Act attended = ops.Attention(q, k, v, a, layer);
  return Project(ops, ops.Gate(attended, gate, GateForm::kSigmoid), attention.o);
}

Act Mlp(LayerOps& ops, WeightCursor& w, const ModelConfig& c, Act m, int64_t layer) {
  if (!c.HasExperts(layer)) return RunGatedMlp(ops, m, TakeGatedMlp(w, c), c);
  return RunExpertMlp(ops, m, TakeExpertMlp(w, c, kDeltaExperts), c);
}

}  // namespace

void ParseDelta(const Json& json, ModelConfig& c, const std::string& source) {
  ParseRope(WithoutImagePositions(json), {.theta = 10000, .partial = true, .rotary_factor = 0.25},
            c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  if (c.activation != Activation::kSilu) {
    ThrowUnsupported(source, "'hidden_act' other than 'silu' for a gated DeltaNet");
  }
  if (!JsonBoolOr(json, "attn_output_gate", true, source)) {
    ThrowUnsupported(source, "'attn_output_gate' false");
  }
  DeltaSpec& d = c.recurrent.delta;
  d.n_k_heads = JsonIntOr(json, "linear_num_key_heads", 16, 1, kMaxHeads, source);
  d.n_v_heads = JsonIntOr(json, "linear_num_value_heads", 32, 1, kMaxHeads, source);
  d.k_dim = JsonIntOr(json, "linear_key_head_dim", 128, 1, kMaxStateKey, source);
  d.v_dim = JsonIntOr(json, "linear_value_head_dim", 128, 1, kMaxHeadDim, source);
  if (d.n_v_heads % d.n_k_heads != 0) {
    throw Error(ErrorCode::kDataLoss, source + ": field 'linear_num_key_heads' must divide " +
                                          std::to_string(d.n_v_heads) +
                                          " ('linear_num_value_heads'), got " +
                                          std::to_string(d.n_k_heads));
  }
  if (d.inputs() > kMaxWidth) {
    throw Error(ErrorCode::kDataLoss,
                source + ": field 'linear_num_value_heads' makes a DeltaNet " +
                    std::to_string(d.inputs()) + " wide, more than " + std::to_string(kMaxWidth));
  }
  c.recurrent.conv = {
      .channels = d.inputs(),
      .kernel = JsonIntOr(json, "linear_conv_kernel_dim", 4, 1, kMaxConvKernel, source),
      .form = ConvForm::kSilu};
  const int64_t every = JsonIntOr(json, "full_attention_interval", 4, 1, kMaxLayers, source);
  ParseRecurrentLayers(
      json, kDeltaLayer, [=](int64_t layer) { return (layer + 1) % every != 0; }, c, source);
}

void WriteDelta(const ModelConfig& c, Json& json) {
  const DeltaSpec& d = c.recurrent.delta;
  json["partial_rotary_factor"] = RotaryFactor(c.rotary_dim, c.attention.head_dim);
  json["linear_num_key_heads"] = d.n_k_heads;
  json["linear_num_value_heads"] = d.n_v_heads;
  json["linear_key_head_dim"] = d.k_dim;
  json["linear_value_head_dim"] = d.v_dim;
  json["linear_conv_kernel_dim"] = c.recurrent.conv.kernel;
  json["layer_types"] = RecurrentLayersToJson(c, kDeltaLayer);
}

std::vector<WeightSpec> ListDeltaDecoder(const ModelConfig& c, const DeltaTraits& traits) {
  std::vector<WeightSpec> specs;
  specs.push_back(EmbeddingSpec("model.embed_tokens.weight", c.vocab_size, c.hidden_dim));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const std::string prefix = LayerPrefix(layer);
    specs.push_back(OffsetNormSpec(prefix + "input_layernorm.weight", c.hidden_dim));
    if (c.IsRecurrent(layer)) {
      ListDeltaNet(specs, prefix, c, traits);
    } else {
      ListGatedAttention(specs, prefix, c);
    }
    specs.push_back(OffsetNormSpec(prefix + "post_attention_layernorm.weight", c.hidden_dim));
    if (c.HasExperts(layer)) {
      ListExpertMlp(specs, prefix, c, kDeltaExperts);
    } else {
      ListGatedMlp(specs, prefix + "mlp", c);
    }
  }
  ListHead(specs, OffsetNormSpec("model.norm.weight", c.hidden_dim), c);
  return specs;
}

void DeltaDecoderForward(const ModelConfig& c, const DeltaTraits& traits, const Weights& weights,
                         LayerOps& ops) {
  WeightCursor w(weights);
  const Weight& embedding = w.Take();
  Act x = ops.Embed(embedding);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const Act h = ops.RmsNorm(x, w.Take(), c.norm_eps);
    x = ops.Add(x, c.IsRecurrent(layer) ? DeltaNet(ops, w, c, traits, h)
                                        : GatedAttention(ops, w, c, h, layer));
    const Act m = ops.RmsNorm(x, w.Take(), c.norm_eps);
    x = ops.Add(x, Mlp(ops, w, c, m, layer));
  }
  RunHead(ops, w, embedding, c, x);
}

void ShapeTinyDelta(ModelConfig& c) {
  c.n_layers = 4;
  c.attention.n_kv_heads = 2;
  c.attention.head_dim = 16;
  c.attention.scale = 0.25f;
  c.rotary_dim = 4;
  c.norm_eps = 1e-6f;
  c.attention_bias = true;
  c.recurrent.delta = {.n_k_heads = 2, .n_v_heads = 4, .k_dim = 10, .v_dim = 12};
  c.recurrent.conv = {.channels = c.recurrent.delta.inputs(), .kernel = 4, .form = ConvForm::kSilu};
  c.recurrent.layers = {true, true, false, true};
}

void ShapeTinyDeltaExperts(ModelConfig& c) {
  ShapeTinyDelta(c);
  ShapeTinyExperts(c);
  c.experts.router.normalise = true;
  c.experts.shared_ffn_dim = 28;
}

}  // namespace tandem::engine
