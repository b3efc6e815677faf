#include "engine/model/families/experts/latent_decoder.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/io/json.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/text_part.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

// The norms of the two latents have transformers' default, not the config's.
constexpr float kLatentNormEps = 1e-6f;
constexpr int64_t kMaxShared = 64;
constexpr ExpertKeys kExpertKeys{
    .count = "n_routed_experts", .other_count = "num_local_experts", .aux_loss = 0};

[[noreturn]] void ThrowField(const std::string& source, const std::string& what) {
  throw Error(ErrorCode::kDataLoss, source + ": " + what);
}

int64_t NopeDim(const ModelConfig& c) { return c.attention.head_dim - c.latent.rope_dim; }

void ParseLatentAttention(const Json& json, const LatentDefaults& defaults, ModelConfig& c,
                          const std::string& source) {
  AttentionSpec& a = c.attention;
  LatentAttention& latent = c.latent;
  if (a.n_kv_heads != a.n_heads) {
    ThrowField(source, "field 'num_key_value_heads' must be " + std::to_string(a.n_heads) +
                           " ('num_attention_heads'), got " + std::to_string(a.n_kv_heads));
  }
  if (!IsNull(json, "q_lora_rank")) {
    latent.q_rank = JsonIntOr(json, "q_lora_rank", defaults.q_rank, 1, kMaxWidth, source);
  }
  latent.kv_rank = JsonIntOr(json, "kv_lora_rank", 512, 1, kMaxWidth, source);
  latent.rope_dim = JsonIntOr(json, "qk_rope_head_dim", 64, 2, kMaxHeadDim, source);
  if (latent.rope_dim % 2 != 0) {
    ThrowField(source,
               "field 'qk_rope_head_dim' must be even, got " + std::to_string(latent.rope_dim));
  }
  const int64_t nope = JsonIntOr(json, "qk_nope_head_dim", 128, 1, kMaxHeadDim, source);
  a.head_dim = nope + latent.rope_dim;
  a.v_head_dim = JsonIntOr(json, "v_head_dim", 128, 1, kMaxHeadDim, source);
  if (a.n_heads * (nope + a.v_head_dim + latent.rope_dim) > kMaxWidth) {
    ThrowField(source, "'num_attention_heads' times the sizes of a head exceed " +
                           std::to_string(kMaxWidth));
  }
}

// YaRN's temperature also multiplies the scores, by the square of mscale_all_dim's.
float ScoreScale(const ModelConfig& c) {
  double scale = 1 / std::sqrt(static_cast<double>(c.attention.head_dim));
  const RopeScaling& rope = c.rope_scaling;
  if (rope.kind == RopeKind::kYarn && rope.mscale_all_dim != 0 && rope.factor > 1) {
    const double mscale = 0.1 * rope.mscale_all_dim * std::log(rope.factor) + 1;
    scale *= mscale * mscale;
  }
  return static_cast<float>(scale);
}

void ParseLatentExperts(const Json& json, const LatentDefaults& defaults, ModelConfig& c,
                        const std::string& source) {
  if (defaults.top_k == 0 && !IsGiven(json, "num_experts_per_tok")) {
    ThrowField(source, "field 'num_experts_per_tok' is missing");
  }
  ExpertKeys keys = kExpertKeys;
  keys.n_experts = defaults.n_experts;
  keys.n_chosen = defaults.top_k;
  keys.normalise = defaults.normalise;
  keys.ffn_dim = defaults.expert_ffn_dim;
  c.experts = ParseExperts(json, keys, source);
  ParseExpertScale(json, defaults.routed_scale, c.experts.router, source);
  if (!IsNull(json, "n_shared_experts")) {
    const int64_t n = JsonIntOr(json, "n_shared_experts", defaults.n_shared, 0, kMaxShared, source);
    c.experts.shared_ffn_dim = n * c.experts.ffn_dim;
  }
  ParseFirstDense(json, defaults.n_dense_layers, c, source);
  if (JsonIntOr(json, "moe_layer_freq", 1, 1, kMaxLayers, source) != 1) {
    ThrowUnsupported(source, "'moe_layer_freq' other than 1");
  }
}

struct LatentWeights {
  Projection q_a;        // or all of q without a latent of queries
  const Weight* q_norm;  // null without one, as q_b
  const Weight* q_b;
  Projection kv_a;
  const Weight& kv_norm;
  const Weight& kv_b;
  Projection o;
};

// Braced initialisers evaluate in order.
LatentWeights TakeLatent(WeightCursor& w, const ModelConfig& c) {
  const bool has_latent = c.latent.q_rank > 0;
  return {TakeProjection(w, has_latent && c.attention_bias),
          has_latent ? &w.Take() : nullptr,
          has_latent ? &w.Take() : nullptr,
          TakeProjection(w, c.attention_bias),
          w.Take(),
          w.Take(),
          TakeProjection(w, c.attention_bias)};
}

Act LatentBlock(const LatentWeights& w, const ModelConfig& c, Act h, int64_t layer, LayerOps& ops) {
  const AttentionSpec& a = c.attention;
  const int64_t heads = a.n_heads, nope = NopeDim(c), rope = c.latent.rope_dim;
  Act q = Project(ops, h, w.q_a);
  if (w.q_b != nullptr) {
    q = ops.Linear(ops.RmsNorm(q, *w.q_norm, kLatentNormEps), *w.q_b, nullptr);
  }
  const Act q_turned = ops.RopeF32(ops.SliceHeads(q, heads, nope, rope), 0);
  q = ops.JoinHeads(ops.SliceHeads(q, heads, 0, nope), q_turned, heads, rope);
  const Act latent = Project(ops, h, w.kv_a);  // [rows, kv_rank + rope_dim]
  const Act k_turned = ops.RopeF32(ops.ColumnsF32(latent, c.latent.kv_rank, rope), 0);
  const Act normed =
      ops.RmsNorm(ops.ColumnsF32(latent, 0, c.latent.kv_rank), w.kv_norm, kLatentNormEps);
  const Act kv = ops.Linear(normed, w.kv_b, nullptr);  // [rows, heads * (nope + v_head_dim)]
  const Act k = ops.JoinHeads(ops.SliceHeads(kv, heads, 0, nope), k_turned, heads, rope);
  const Act v = ops.SliceHeads(kv, heads, nope, a.v_head_dim);
  return Project(ops, ops.Attention(q, k, v, a, layer), w.o);
}

}  // namespace

ModelConfig ParseLatentDecoder(const Json& outer, const LatentDefaults& defaults,
                               const std::string& source) {
  Json json = outer;
  json.erase("head_dim");  // transformers writes the rotating part here
  HfDefaults decoder = defaults.decoder;
  decoder.head_dim = 64;
  ModelConfig c = ParseDecoder(json, decoder, source);
  ParseLatentAttention(json, defaults, c, source);
  ParseRope(json, 10000, c, source);
  c.attention.scale = ScoreScale(c);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  ParseLatentExperts(json, defaults, c, source);
  return c;
}

Json WriteLatentDecoder(const ModelConfig& c, const char* architecture, const char* model_type) {
  Json json = WriteDecoder(c, architecture, model_type);
  json.erase("head_dim");
  json["q_lora_rank"] = c.latent.q_rank > 0 ? Json(c.latent.q_rank) : Json(nullptr);
  json["kv_lora_rank"] = c.latent.kv_rank;
  json["qk_rope_head_dim"] = c.latent.rope_dim;
  json["qk_nope_head_dim"] = NopeDim(c);
  json["v_head_dim"] = c.attention.v_head_dim;
  if (c.rope_scaling.kind == RopeKind::kYarn) {
    json["rope_scaling"]["mscale_all_dim"] = c.rope_scaling.mscale_all_dim;
  }
  WriteExperts(c, kExpertKeys, json);
  json.erase("router_aux_loss_coef");
  json["n_shared_experts"] = c.experts.shared_ffn_dim / c.experts.ffn_dim;
  json["first_k_dense_replace"] = FirstExpertLayer(c);
  WriteExpertGroups(c.experts.router, json);
  return json;
}

std::vector<WeightSpec> ListLatentWeights(const ModelConfig& c) {
  const AttentionSpec& a = c.attention;
  const int64_t hidden = c.hidden_dim, q_dim = a.n_heads * a.head_dim;
  std::vector<WeightSpec> specs;
  specs.push_back(EmbeddingSpec("model.embed_tokens.weight", c.vocab_size, hidden));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const std::string prefix = LayerPrefix(layer);
    const std::string attn = prefix + "self_attn.";
    specs.push_back(VectorSpec(prefix + "input_layernorm.weight", hidden));
    if (c.latent.q_rank > 0) {
      ListProjection(specs, attn + "q_a_proj", c.latent.q_rank, hidden, c.attention_bias);
      specs.push_back(VectorSpec(attn + "q_a_layernorm.weight", c.latent.q_rank));
      specs.push_back(MatrixSpec(attn + "q_b_proj.weight", q_dim, c.latent.q_rank));
    } else {
      specs.push_back(MatrixSpec(attn + "q_proj.weight", q_dim, hidden));
    }
    ListProjection(specs, attn + "kv_a_proj_with_mqa", c.latent.kv_rank + c.latent.rope_dim, hidden,
                   c.attention_bias);
    specs.push_back(VectorSpec(attn + "kv_a_layernorm.weight", c.latent.kv_rank));
    specs.push_back(MatrixSpec(attn + "kv_b_proj.weight", a.n_heads * (NopeDim(c) + a.v_head_dim),
                               c.latent.kv_rank));
    ListProjection(specs, attn + "o_proj", hidden, a.n_heads * a.v_head_dim, c.attention_bias);
    specs.push_back(VectorSpec(prefix + "post_attention_layernorm.weight", hidden));
    if (c.HasExperts(layer)) {
      ListExpertMlp(specs, prefix, c, {});
    } else {
      ListGatedMlp(specs, prefix + "mlp", c);
    }
  }
  ListHead(specs, VectorSpec("model.norm.weight", hidden), c);
  AddMultimodalNames(specs);
  return specs;
}

std::vector<RopeSpec> ListLatentRopes(const ModelConfig& c) {
  RopeSpec rope = ScaledRope(c.latent.rope_dim, c.rope_theta, c.rope_scaling);
  rope.head_dim = c.latent.rope_dim;
  rope.interleaved = c.latent.interleaved;
  return {std::move(rope)};
}

void LatentForward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  WeightCursor w(weights);
  const Weight& embedding = w.Take();
  Act x = ops.Embed(embedding);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const Act h = ops.RmsNorm(x, w.Take(), c.norm_eps);
    x = ops.Add(x, LatentBlock(TakeLatent(w, c), c, h, layer, ops));
    const Act m = ops.RmsNorm(x, w.Take(), c.norm_eps);
    if (c.HasExperts(layer)) {
      x = ops.Add(x, RunExpertMlp(ops, m, TakeExpertMlp(w, c, {}), c));
    } else {
      x = ops.Add(x, RunGatedMlp(ops, m, TakeGatedMlp(w, c), c));
    }
  }
  RunHead(ops, w, embedding, c, x);
}

void ShapeTinyLatent(ModelConfig& c) {
  c.n_layers = 3;
  c.norm_eps = 1e-6f;
  c.attention_bias = true;
  c.latent = {.q_rank = 20, .kv_rank = 16, .rope_dim = 6, .interleaved = true};
  c.attention.head_dim = 14;
  c.attention.v_head_dim = 10;
  c.rope_scaling = {.kind = RopeKind::kYarn,
                    .factor = 4,
                    .original_max_positions = 64,
                    .attention_factor = 1,
                    .mscale_all_dim = 0.7};
  c.attention.scale = ScoreScale(c);
  ShapeTinyExperts(c);
  c.experts.router.scale = 1.5f;
  c.experts.router.n_groups = 4;
  c.experts.router.top_groups = 2;
  c.experts.shared_ffn_dim = 2 * c.experts.ffn_dim;
  c.experts.layers = {false, true, true};
}

}  // namespace tandem::engine
