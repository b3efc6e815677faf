#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/ids.h"
#include "engine/ops/attention.h"
#include "engine/ops/experts.h"
#include "engine/ops/recurrence.h"

namespace tandem::engine {

// kDynamic grows the base with texts beyond the context, which are never computed here.
enum class RopeKind : uint8_t { kPlain, kLinear, kLlama3, kYarn, kLong, kDynamic };

// How a rope was stretched over longer contexts (`rope_type`). Fields beyond `factor` belong to the
// kinds in their comments.
struct RopeScaling {
  RopeKind kind = RopeKind::kPlain;
  double factor = 1;
  int64_t original_max_positions = 0;  // kLlama3, kYarn, kLong
  double low_freq_factor = 1;          // kLlama3
  double high_freq_factor = 4;         // kLlama3
  double beta_fast = 32;               // kYarn: dimensions with more turns in the original
  double beta_slow = 1;                // context are kept; those with fewer than this are slowed
  double attention_factor = 1;         // kYarn, kLong: multiplies cosine and sine
  bool truncate = true;                // kYarn: ramp borders are whole dimensions
  double mscale_all_dim = 0;           // kYarn: DeepSeek's, which also scales the scores; 0: off
  // kLong: divisors of the frequencies. The long ones apply to contexts above the original length.
  std::vector<double> short_factors = {};
  std::vector<double> long_factors = {};
};

// Parts of Gemma 3n and 4 beyond the decoder that the earlier generations share.
struct GemmaParts {
  int64_t per_layer_dim = 0;       // width of each layer's own embedding of the token; 0: none
  int64_t per_layer_vocab = 0;     // tokens that have one; others have that of token 0
  int64_t n_shared_kv_layers = 0;  // the last layers; they read an earlier layer's keys and values
  bool values_are_keys = false;    // of full layers: the values are the keys before norm and rope
  bool wide_shared_mlp = false;    // layers that share keys have an MLP of twice ffn_dim
  double rotary_part = 1;          // of a full layer's head: the share of dimensions that turn
  // Gemma 3n: streams of hidden states, of which each layer computes one (AltUp); 0: none.
  int64_t n_streams = 0;
  int64_t active_stream = 0;
  bool scales_active = true;    // before the layer's embedding of the token is added
  float coefficient_limit = 0;  // of AltUp in training; kept for exports, never applied; 0: none
  int64_t laurel_rank = 0;      // of the learned residual (LAuReL)
  // By layer: width of the MLP, and the share of its gates that become 0 (0: none does).
  std::vector<int64_t> ffn_dims = {};
  std::vector<double> sparsity = {};
  std::vector<float> cuts = {};  // the same in standard deviations above the mean
};

// Multi-head latent attention (DeepSeek-AI 2024): a row's keys and values are projections of one
// short latent. `attention` has the expanded heads: head_dim includes rope_dim.
struct LatentAttention {
  int64_t q_rank = 0;       // of the latent of queries; 0: queries have none
  int64_t kv_rank = 0;      // 0: attention is not latent
  int64_t rope_dim = 0;     // last dimensions of a head, which rotate; all heads of keys share them
  bool interleaved = true;  // dimension 2i rotates with 2i + 1
};

// Layers whose MLP is a mixture of experts.
struct ExpertsConfig {
  RouterSpec router;  // n_experts 0: no layer has experts
  bool selection_bias = false;
  int64_t ffn_dim = 0;         // of one expert
  int64_t shared_ffn_dim = 0;  // of the expert that every row passes; 0: none
  int64_t latent_dim = 0;      // experts read and write a projection of this width; 0: none
  // By layer: whether it has experts. Empty: every layer has.
  std::vector<bool> layers;
  float aux_loss = 0;  // weight of the load-balancing loss; training only
};

// Multipliers of a layer's branches (Falcon-H1).
struct BranchMultipliers {
  float attention_in = 1, attention_out = 1, keys = 1;
  float scan_in = 1, scan_out = 1;
  float mlp_gate = 1, mlp_down = 1;
  std::array<float, 5> scan_parts = {1, 1, 1, 1, 1};  // of a scan's gate, x, B, C and dt
};

// The norm of a scan's result, which a gate multiplies.
enum class ScanNorm : uint8_t { kNone, kAfterGate, kBeforeGate };

// Layers that keep a state instead of keys.
struct RecurrentConfig {
  std::vector<bool> layers;  // by layer; empty: all layers have attention
  ConvSpec conv;             // channels 0: no convolution
  bool conv_bias = false;
  DeltaSpec delta;                         // n_v_heads 0: none
  ScanSpec scan;                           // n_heads 0: none
  bool in_bias = false, out_bias = false;  // of a scan's projections
  ScanNorm norm = ScanNorm::kAfterGate;
};

// The content of a family's config.json in one vocabulary. Immutable after parsing.
struct ModelConfig {
  std::string family;  // a name of families.cc
  int64_t n_layers = 0;
  int64_t hidden_dim = 0;
  int64_t ffn_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_context_len = 0;
  float norm_eps = 1e-5f;
  AttentionSpec attention;
  // By layer: whether attention.window applies. Empty: it applies to all layers.
  std::vector<bool> windowed_layers;
  // By layer, in families whose layers differ in more than the window. Empty: `attention` with
  // windowed_layers.
  std::vector<AttentionSpec> layer_attention;
  GemmaParts gemma;
  LatentAttention latent;
  // Gemma's query_pre_attn_scalar: attention.scale is 1 / sqrt(query_scalar). 0: head_dim.
  double query_scalar = 0;
  float logit_cap = 0;  // cap * tanh(logit / cap); 0 = off
  double rope_theta = 10000;
  double local_rope_theta = 10000;  // of windowed layers in families with two ropes
  RopeScaling rope_scaling;
  int64_t rotary_dim = 0;  // dimensions of a head that rotate; 0: all
  // By layer: the rope table, kNoRope for none. Empty: table 0 on all layers.
  std::vector<int8_t> layer_ropes;
  // Llama 4's temperature: queries grow with the position p by 1 + query_growth * ln(1 + floor(p /
  // query_growth_period)).
  double query_growth = 0;
  int64_t query_growth_period = 1;
  float embedding_multiplier = 1;
  float residual_multiplier = 1;  // of attention's and the MLP's results
  float logit_multiplier = 1;
  float clip_qkv = 0;  // limit of q, k and v before their norms; 0: none
  Activation activation = Activation::kSilu;
  bool attention_bias = false;      // of q, k, v and o; families with a second key: without o
  bool attention_out_bias = false;  // of o, in families with that key
  bool mlp_bias = false;
  bool parallel_residual = false;  // attention and MLP read one norm, in families with that key
  bool tied_embeddings = false;
  float dropout = 0;            // of residual branches; training only
  float embedding_dropout = 0;  // training only
  bool qk_norm = false;         // of each head, in families with that key
  ExpertsConfig experts;
  RecurrentConfig recurrent;
  BranchMultipliers branches;
  // By layer, in families whose layers have a mixer or an MLP: whether it is a plain MLP.
  std::vector<bool> mlp_layers;
  std::vector<TokenId> eos_tokens;
  TokenId bos_token = -1;

  static constexpr int8_t kNoRope = -1;
  int8_t LayerRope(int64_t layer) const {
    return layer_ropes.empty() ? int8_t{0} : layer_ropes[static_cast<size_t>(layer)];
  }
  bool HasExperts(int64_t layer) const {
    if (experts.router.n_experts == 0) return false;
    return experts.layers.empty() || experts.layers[static_cast<size_t>(layer)];
  }
  bool IsRecurrent(int64_t layer) const {
    const auto i = static_cast<size_t>(layer);
    return i < recurrent.layers.size() && recurrent.layers[i];
  }
  bool IsMlp(int64_t layer) const {
    const auto i = static_cast<size_t>(layer);
    return i < mlp_layers.size() && mlp_layers[i];
  }
  AttentionSpec LayerAttention(int64_t layer) const {
    if (!layer_attention.empty()) return layer_attention[static_cast<size_t>(layer)];
    AttentionSpec spec = attention;
    if (!windowed_layers.empty() && !windowed_layers[static_cast<size_t>(layer)]) spec.window = 0;
    return spec;
  }
};

}  // namespace tandem::engine
