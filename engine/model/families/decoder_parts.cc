#include "engine/model/families/decoder_parts.h"

#include <utility>

#include "engine/base/check.h"

namespace tandem::engine {

void WindowEveryOtherLayer(ModelConfig& config) {
  config.attention.window = kTinyWindow;
  for (int64_t i = 0; i < config.n_layers; ++i) config.windowed_layers.push_back(i % 2 == 0);
}

WeightSpec MatrixSpec(std::string name, int64_t n, int64_t k) {
  return {
      .name = std::move(name), .kind = WeightKind::kMatrix, .source_shape = {n, k}, .n = n, .k = k};
}

WeightSpec EmbeddingSpec(std::string name, int64_t n, int64_t k) {
  return {.name = std::move(name),
          .kind = WeightKind::kEmbedding,
          .source_shape = {n, k},
          .n = n,
          .k = k};
}

WeightSpec VectorSpec(std::string name, int64_t n) {
  return {.name = std::move(name),
          .kind = WeightKind::kVector,
          .source_shape = {n},
          .n = n,
          .decays = false};
}

WeightSpec OffsetNormSpec(std::string name, int64_t n) {
  WeightSpec spec = VectorSpec(std::move(name), n);
  spec.offset = 1;
  return spec;
}

const Weight& WeightCursor::Take() {
  TANDEM_CHECK(next_ < weights_.size());
  return weights_[next_++];
}

std::span<const Weight> WeightCursor::TakeMany(int64_t count) {
  const auto n = static_cast<size_t>(count);
  TANDEM_CHECK(count >= 0 && n <= weights_.size() - next_);
  next_ += n;
  return weights_.subspan(next_ - n, n);
}

std::string LayerPrefix(int64_t layer) { return "model.layers." + std::to_string(layer) + "."; }

void ListHead(std::vector<WeightSpec>& specs, WeightSpec norm, const ModelConfig& config) {
  specs.push_back(std::move(norm));
  if (config.tied_embeddings) return;
  specs.push_back(MatrixSpec("lm_head.weight", config.vocab_size, config.hidden_dim));
}

void RunHead(LayerOps& ops, WeightCursor& weights, const Weight& embedding,
             const ModelConfig& config, Act x) {
  const Act normed = ops.RmsNorm(x, weights.Take(), config.norm_eps);
  const Weight& head = config.tied_embeddings ? embedding : weights.Take();
  ops.Logits(normed, head, nullptr, config.logit_cap);
  TANDEM_CHECK(weights.at_end());
}

void ListProjection(std::vector<WeightSpec>& specs, const std::string& name, int64_t n, int64_t k,
                    bool bias) {
  specs.push_back(MatrixSpec(name + ".weight", n, k));
  if (bias) specs.push_back(VectorSpec(name + ".bias", n));
}

Projection TakeProjection(WeightCursor& weights, bool bias) {
  const Weight& weight = weights.Take();
  return {weight, bias ? &weights.Take() : nullptr};
}

Act Project(LayerOps& ops, Act x, const Projection& projection) {
  return ops.Linear(x, projection.weight, projection.bias);
}

AttentionBiases EqualBiases(const ModelConfig& config) {
  return {.qkv = config.attention_bias, .o = config.attention_bias};
}

void ListSelfAttention(std::vector<WeightSpec>& specs, const std::string& prefix,
                       const ModelConfig& config, AttentionBiases biases) {
  const AttentionSpec& a = config.attention;
  const int64_t hidden = config.hidden_dim;
  const int64_t q_dim = a.n_heads * a.head_dim, kv_dim = a.n_kv_heads * a.head_dim;
  ListProjection(specs, prefix + ".q_proj", q_dim, hidden, biases.qkv);
  ListProjection(specs, prefix + ".k_proj", kv_dim, hidden, biases.qkv);
  ListProjection(specs, prefix + ".v_proj", kv_dim, hidden, biases.qkv);
  ListProjection(specs, prefix + ".o_proj", hidden, q_dim, biases.o);
}

// Braced initialisers evaluate in order.
SelfAttention TakeSelfAttention(WeightCursor& weights, AttentionBiases biases) {
  return {TakeProjection(weights, biases.qkv), TakeProjection(weights, biases.qkv),
          TakeProjection(weights, biases.qkv), TakeProjection(weights, biases.o)};
}

Act RunSelfAttention(LayerOps& ops, const SelfAttention& attention, const ModelConfig& config,
                     Act h, int64_t layer, const Weight* sinks) {
  const int8_t table = config.LayerRope(layer);
  const auto rotate = [&](Act x) {
    return table == ModelConfig::kNoRope ? x : ops.Rope(x, static_cast<size_t>(table));
  };
  const Act q = rotate(Project(ops, h, attention.q));
  const Act k = rotate(Project(ops, h, attention.k));
  const Act v = Project(ops, h, attention.v);
  const AttentionSpec spec = config.LayerAttention(layer);
  return Project(ops, ops.Attention(q, k, v, spec, layer, sinks), attention.o);
}

void ListGatedMlp(std::vector<WeightSpec>& specs, const std::string& prefix,
                  const ModelConfig& config) {
  const int64_t hidden = config.hidden_dim, ffn = config.ffn_dim;
  ListProjection(specs, prefix + ".gate_proj", ffn, hidden, config.mlp_bias);
  ListProjection(specs, prefix + ".up_proj", ffn, hidden, config.mlp_bias);
  ListProjection(specs, prefix + ".down_proj", hidden, ffn, config.mlp_bias);
}

GatedMlp TakeGatedMlp(WeightCursor& weights, const ModelConfig& config) {
  return {TakeProjection(weights, config.mlp_bias), TakeProjection(weights, config.mlp_bias),
          TakeProjection(weights, config.mlp_bias)};
}

Act RunGatedMlp(LayerOps& ops, Act x, const GatedMlp& mlp, const ModelConfig& config) {
  const Act gate = Project(ops, x, mlp.gate);  // [rows, ffn_dim]
  const Act up = Project(ops, x, mlp.up);
  return Project(ops, ops.GatedActivation(gate, up, config.activation), mlp.down);
}

}  // namespace tandem::engine
