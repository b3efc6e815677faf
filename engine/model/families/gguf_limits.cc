#include "engine/model/families/gguf_limits.h"

#include "engine/model/families/gguf_config.h"

namespace tandem::engine {
namespace {

std::string Unless(bool holds, const char* setting) { return holds ? "" : setting; }

}  // namespace

std::string RefuseLlama3Rope(const ModelConfig& c) {
  return Unless(c.rope_scaling.kind != RopeKind::kLlama3, "'rope_type': 'llama3'");
}

std::string RefuseUntruncatedYarn(const ModelConfig& c) {
  return Unless(c.rope_scaling.kind != RopeKind::kYarn || c.rope_scaling.truncate,
                "'truncate': false of yarn");
}

std::string RefuseYarn(const ModelConfig& c) {
  return Unless(c.rope_scaling.kind != RopeKind::kYarn, "'rope_type': 'yarn'");
}

std::string RequirePlainRope(const ModelConfig& c) {
  return Unless(c.rope_scaling.kind == RopeKind::kPlain, "a scaled rope");
}

std::string RequireSilu(const ModelConfig& c) {
  return Unless(c.activation == Activation::kSilu, "an activation other than silu");
}

std::string RequireSquaredRelu(const ModelConfig& c) {
  return Unless(c.activation == Activation::kRelu2, "an activation other than relu2");
}

std::string RequireTanhGelu(const ModelConfig& c) {
  return Unless(c.activation == Activation::kGeluTanh, "an activation other than gelu_tanh");
}

std::string RefuseMlpBias(const ModelConfig& c) { return Unless(!c.mlp_bias, "biases of the MLP"); }

std::string RefuseAttentionBias(const ModelConfig& c) {
  return Unless(!c.attention_bias, "biases of the attention");
}

std::string RequireTiedHead(const ModelConfig& c) {
  return Unless(c.tied_embeddings, "an lm_head of its own");
}

std::string RefuseWindow(const ModelConfig& c) { return Unless(!HasWindow(c), "a sliding window"); }

std::string RequireAlternatingWindows(const ModelConfig& c) {
  return Unless(FollowsPattern(c, 2), "windows on other layers than every second");
}

std::string IgnoredWindowCaveat(const ModelConfig& c) {
  return Unless(!HasWindow(c),
                "other GGUF readers ignore the sliding window of this architecture; beyond the "
                "window they compute a different model");
}

std::string QueryScalarLimit(const ModelConfig& c, int64_t layers_of_largest) {
  const int64_t head =
      c.n_layers == layers_of_largest ? c.hidden_dim / c.attention.n_heads : c.attention.head_dim;
  const double scalar =
      c.query_scalar > 0 ? c.query_scalar : static_cast<double>(c.attention.head_dim);
  if (scalar == static_cast<double>(head)) return "";
  return "'query_pre_attn_scalar' other than " + std::to_string(head);
}

}  // namespace tandem::engine
