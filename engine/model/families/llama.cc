// Llama 2 and 3 (Touvron et al. 2023, Grattafiori et al. 2024), as transformers' LlamaForCausalLM:
// pre-norm blocks of grouped-query attention with rotary positions and a SwiGLU MLP. Also what
// TinyLlama, SmolLM and our own tandem-stories are.

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/check.h"
#include "engine/io/json.h"
#include "engine/model/families/families.h"
#include "engine/model/families/hf_config.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"LlamaForCausalLM", "llama"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  // Absent keys have the defaults of transformers' LlamaConfig.
  ModelConfig c;
  c.family = "llama";
  c.vocab_size = JsonIntOr(json, "vocab_size", 32000, 1, kMaxVocab, source);
  c.hidden_dim = JsonIntOr(json, "hidden_size", 4096, 1, kMaxWidth, source);
  c.ffn_dim = JsonIntOr(json, "intermediate_size", 11008, 1, kMaxWidth, source);
  c.n_layers = JsonIntOr(json, "num_hidden_layers", 32, 1, kMaxLayers, source);
  c.max_context_len = JsonIntOr(json, "max_position_embeddings", 2048, 1, kMaxContext, source);
  c.norm_eps = static_cast<float>(JsonNumberOr(json, "rms_norm_eps", 1e-6, 0, 1, source));
  c.tied_embeddings = JsonBoolOr(json, "tie_word_embeddings", false, source);
  c.bos_token = FirstToken(ParseTokenList(json, "bos_token_id", c.vocab_size, {1}, source));
  c.eos_tokens = ParseTokenList(json, "eos_token_id", c.vocab_size, {2}, source);

  AttentionSpec& a = c.attention;
  a.n_heads = JsonIntOr(json, "num_attention_heads", 32, 1, kMaxHeads, source);
  a.n_kv_heads = JsonIntOr(json, "num_key_value_heads", a.n_heads, 1, a.n_heads, source);
  if (a.n_heads % a.n_kv_heads != 0) {
    throw Error(ErrorCode::kDataLoss,
                source + ": field 'num_key_value_heads' must divide " + std::to_string(a.n_heads) +
                    " ('num_attention_heads'), got " + std::to_string(a.n_kv_heads));
  }
  a.head_dim = JsonIntOr(json, "head_dim", c.hidden_dim / a.n_heads, 1, kMaxHeadDim, source);
  if (a.head_dim < 2 || a.head_dim > kMaxHeadDim || a.head_dim % 2 != 0 ||
      a.n_heads * a.head_dim > kMaxWidth) {
    throw Error(ErrorCode::kDataLoss, source + ": field 'head_dim' must be even, in [2, " +
                                          std::to_string(kMaxHeadDim) + "] and at most " +
                                          std::to_string(kMaxWidth) + " over all heads, got " +
                                          std::to_string(a.head_dim));
  }
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));

  const RopeConfig rope = ParseRope(json, 10000, source);
  c.rope_theta = rope.theta;
  c.rope_scaling = rope.scaling;

  const std::string act = JsonStringOr(json, "hidden_act", "silu", source);
  if (act != "silu" && act != "swish")
    ThrowUnsupported(source, "'hidden_act' '" + act + "'; only 'silu'");
  for (const char* field : {"attention_bias", "mlp_bias"}) {
    if (JsonBoolOr(json, field, false, source)) {
      ThrowUnsupported(source, "'" + std::string(field) + "': true");
    }
  }
  if (json.contains("quantization_config") && !json["quantization_config"].is_null()) {
    ThrowUnsupported(source, "'quantization_config'; only floating-point checkpoints load");
  }
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  return Json{{"architectures", Json::array({"LlamaForCausalLM"})},
              {"model_type", "llama"},
              {"vocab_size", c.vocab_size},
              {"hidden_size", c.hidden_dim},
              {"intermediate_size", c.ffn_dim},
              {"num_hidden_layers", c.n_layers},
              {"num_attention_heads", c.attention.n_heads},
              {"num_key_value_heads", c.attention.n_kv_heads},
              {"head_dim", c.attention.head_dim},
              {"hidden_act", "silu"},
              {"max_position_embeddings", c.max_context_len},
              {"rms_norm_eps", ShortestDouble(c.norm_eps)},
              {"rope_theta", c.rope_theta},
              {"rope_scaling", RopeScalingToJson(c.rope_scaling)},
              {"attention_bias", false},
              {"mlp_bias", false},
              {"tie_word_embeddings", c.tied_embeddings},
              {"bos_token_id", c.bos_token < 0 ? Json(nullptr) : Json(c.bos_token)},
              {"eos_token_id", TokenListToJson(c.eos_tokens)}};
}

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  const AttentionSpec& a = c.attention;
  const int64_t q_dim = a.n_heads * a.head_dim, kv_dim = a.n_kv_heads * a.head_dim;
  std::vector<WeightSpec> specs;
  specs.push_back(EmbeddingSpec("model.embed_tokens.weight", c.vocab_size, c.hidden_dim));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    specs.push_back(VectorSpec(prefix + "input_layernorm.weight", c.hidden_dim));
    specs.push_back(MatrixSpec(prefix + "self_attn.q_proj.weight", q_dim, c.hidden_dim));
    specs.push_back(MatrixSpec(prefix + "self_attn.k_proj.weight", kv_dim, c.hidden_dim));
    specs.push_back(MatrixSpec(prefix + "self_attn.v_proj.weight", kv_dim, c.hidden_dim));
    specs.push_back(MatrixSpec(prefix + "self_attn.o_proj.weight", c.hidden_dim, q_dim));
    specs.push_back(VectorSpec(prefix + "post_attention_layernorm.weight", c.hidden_dim));
    specs.push_back(MatrixSpec(prefix + "mlp.gate_proj.weight", c.ffn_dim, c.hidden_dim));
    specs.push_back(MatrixSpec(prefix + "mlp.up_proj.weight", c.ffn_dim, c.hidden_dim));
    specs.push_back(MatrixSpec(prefix + "mlp.down_proj.weight", c.hidden_dim, c.ffn_dim));
  }
  specs.push_back(VectorSpec("model.norm.weight", c.hidden_dim));
  if (!c.tied_embeddings) {
    specs.push_back(MatrixSpec("lm_head.weight", c.vocab_size, c.hidden_dim));
  }
  return specs;
}

std::vector<double> RopeFrequencies(const ModelConfig& c) {
  return ScaledRopeFrequencies(c.attention.head_dim, c.rope_theta, c.rope_scaling);
}

struct Layer {
  const Weight &attn_norm, &q, &k, &v, &o;
  const Weight &mlp_norm, &gate, &up, &down;
};

// Braces evaluate in order, so the members are taken as ListWeights lists them.
Layer TakeLayer(WeightCursor& w) {
  return {w.Take(), w.Take(), w.Take(), w.Take(), w.Take(), w.Take(), w.Take(), w.Take(), w.Take()};
}

Act Block(const Layer& w, const ModelConfig& c, Act x, int64_t layer, LayerOps& ops) {
  const Act h = ops.RmsNorm(x, w.attn_norm, c.norm_eps);  // [rows, hidden_dim]
  const Act q = ops.Rope(ops.Linear(h, w.q, nullptr));    // [rows, n_heads * head_dim]
  const Act k = ops.Rope(ops.Linear(h, w.k, nullptr));    // [rows, n_kv_heads * head_dim]
  const Act v = ops.Linear(h, w.v, nullptr);
  const Act attended = ops.Attention(q, k, v, c.attention, layer);
  x = ops.Add(x, ops.Dropout(ops.Linear(attended, w.o, nullptr), c.dropout));
  const Act m = ops.RmsNorm(x, w.mlp_norm, c.norm_eps);
  const Act gate = ops.Linear(m, w.gate, nullptr);  // [rows, ffn_dim]
  const Act up = ops.Linear(m, w.up, nullptr);
  const Act gated = ops.GatedActivation(gate, up, c.activation);
  return ops.Add(x, ops.Dropout(ops.Linear(gated, w.down, nullptr), c.dropout));
}

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  WeightCursor w(weights);
  const Weight& embedding = w.Take();
  Act x = ops.Embed(embedding);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    x = Block(TakeLayer(w), c, x, layer, ops);
  }
  const Act normed = ops.RmsNorm(x, w.Take(), c.norm_eps);
  ops.Logits(normed, c.tied_embeddings ? embedding : w.Take(), nullptr);
  TANDEM_CHECK(w.at_end());
}

}  // namespace

constinit const FamilySpec kLlamaFamily{
    .name = "llama",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .rope_frequencies = RopeFrequencies,
    .forward = Forward,
};

}  // namespace tandem::engine
