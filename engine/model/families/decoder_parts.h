#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/layer_ops.h"
#include "engine/model/families/weights.h"

namespace tandem::engine {

// Parts that families share: how transformers checkpoints store weights, and the two groups of
// linear layers common to decoders from Llama to Gemma. Each part has functions that list, take and
// run it, all in the same weight order.

// Window of tiny test models; shorter than the tests' texts.
inline constexpr int64_t kTinyWindow = 24;
void WindowEveryOtherLayer(ModelConfig& config);

WeightSpec MatrixSpec(std::string name, int64_t n, int64_t k);
WeightSpec EmbeddingSpec(std::string name, int64_t n, int64_t k);
WeightSpec VectorSpec(std::string name, int64_t n);
// A norm's scale, stored minus 1.
WeightSpec OffsetNormSpec(std::string name, int64_t n);

// Hands out a model's weights in list order. A family names weights once when it lists them, and
// takes them in the same order.
class WeightCursor {
 public:
  explicit WeightCursor(std::span<const Weight> weights) : weights_(weights) {}
  const Weight& Take();
  std::span<const Weight> TakeMany(int64_t count);
  bool at_end() const { return next_ == weights_.size(); }

 private:
  std::span<const Weight> weights_;
  size_t next_ = 0;
};

// "model.layers.LAYER.".
std::string LayerPrefix(int64_t layer);
// The last norm, then lm_head where it is not the embedding.
void ListHead(std::vector<WeightSpec>& specs, WeightSpec norm, const ModelConfig& config);
// The logits of the last layer's result. All weights are taken then.
void RunHead(LayerOps& ops, WeightCursor& weights, const Weight& embedding,
             const ModelConfig& config, Act x);

// A linear layer: NAME.weight and, where the model has them, NAME.bias.
struct Projection {
  const Weight& weight;
  const Weight* bias;
};
void ListProjection(std::vector<WeightSpec>& specs, const std::string& name, int64_t n, int64_t k,
                    bool bias);
Projection TakeProjection(WeightCursor& weights, bool bias);
Act Project(LayerOps& ops, Act x, const Projection& projection);

// PREFIX.q_proj, k_proj, v_proj and o_proj.
struct SelfAttention {
  Projection q, k, v, o;
};
struct AttentionBiases {
  bool qkv = false;
  bool o = false;
};
// All four have one where `attention_bias` says so.
AttentionBiases EqualBiases(const ModelConfig& config);
void ListSelfAttention(std::vector<WeightSpec>& specs, const std::string& prefix,
                       const ModelConfig& config, AttentionBiases biases);
SelfAttention TakeSelfAttention(WeightCursor& weights, AttentionBiases biases);
// `h` is the layer's normed input. q and k rotate where the layer has rope.
Act RunSelfAttention(LayerOps& ops, const SelfAttention& attention, const ModelConfig& config,
                     Act h, int64_t layer, const Weight* sinks = nullptr);

// PREFIX.gate_proj, up_proj and down_proj: down(activation(gate(x)) * up(x)).
struct GatedMlp {
  Projection gate, up, down;
};
void ListGatedMlp(std::vector<WeightSpec>& specs, const std::string& prefix,
                  const ModelConfig& config);
GatedMlp TakeGatedMlp(WeightCursor& weights, const ModelConfig& config);
Act RunGatedMlp(LayerOps& ops, Act x, const GatedMlp& mlp, const ModelConfig& config);

}  // namespace tandem::engine
