#include "engine/model/families/llama_decoder.h"

#include <optional>
#include <string>

#include "engine/base/check.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/text_part.h"

namespace tandem::engine {
namespace {

bool HasScale(NormKind kind) { return kind != NormKind::kLayerBare; }
bool HasBias(NormKind kind) { return kind == NormKind::kLayer || kind == NormKind::kLayerOffset; }

// Lists the weights of one model in the order in which DecoderRun takes them.
class DecoderLister {
 public:
  DecoderLister(const ModelConfig& config, const LlamaTraits& traits)
      : c_(config), t_(traits), names_(traits.names) {}

  std::vector<WeightSpec> Run() {
    specs_.push_back(
        EmbeddingSpec(Name(names_.embedding, ".weight"), c_.vocab_size, c_.hidden_dim));
    for (int64_t layer = 0; layer < c_.n_layers; ++layer) {
      prefix_ = Name(names_.layers, std::to_string(layer) + ".");
      ListBlock(layer);
    }
    prefix_.clear();
    ListNorm(names_.norm);
    if (!c_.tied_embeddings) {
      specs_.push_back(MatrixSpec(Name(names_.head, ".weight"), c_.vocab_size, c_.hidden_dim));
    }
    if (t_.head_bias) specs_.push_back(VectorSpec(Name(names_.head, ".bias"), c_.vocab_size));
    AddMultimodalNames(specs_);
    return std::move(specs_);
  }

 private:
  static std::string Name(std::string_view first, std::string_view second) {
    return std::string(first) + std::string(second);
  }

  void ListBlock(int64_t layer) {
    ListNorm(t_.norms.attention_in);
    ListAttention();
    ListNorm(t_.norms.attention_out);
    ListNorm(t_.norms.mlp_in);
    if (c_.HasExperts(layer)) {
      ListExpertMlp(specs_, prefix_, c_, t_.experts);
    } else {
      ListMlp();
    }
    ListNorm(t_.norms.mlp_out);
  }

  void ListNorm(std::string_view name) {
    if (name.empty() || !HasScale(t_.norm)) return;
    specs_.push_back(VectorSpec(prefix_ + Name(name, ".weight"), c_.hidden_dim));
    if (t_.norm == NormKind::kLayerOffset) specs_.back().offset = 1;
    if (HasBias(t_.norm))
      specs_.push_back(VectorSpec(prefix_ + Name(name, ".bias"), c_.hidden_dim));
  }

  void ListAttention() {
    const AttentionSpec& a = c_.attention;
    const int64_t q = a.n_heads * a.head_dim, kv = a.n_kv_heads * a.head_dim;
    const std::string prefix = prefix_ + std::string(names_.attention);
    const auto list = [&](std::string_view name, int64_t n, int64_t k, bool bias) {
      ListProjection(specs_, Name(prefix, name), n, k, bias);
    };
    if (t_.fused_qkv) {
      list(names_.qkv, q + 2 * kv, c_.hidden_dim, t_.biases.qkv);
    } else {
      list(names_.q, q, c_.hidden_dim, t_.biases.qkv);
      list(names_.k, kv, c_.hidden_dim, t_.biases.qkv);
      list(names_.v, kv, c_.hidden_dim, t_.biases.qkv);
    }
    list(names_.o, c_.hidden_dim, q, t_.biases.o);
    if (t_.qk_norm == QkNorm::kNone) return;
    const bool heads = t_.qk_norm == QkNorm::kHeads;
    specs_.push_back(VectorSpec(prefix + Name(names_.q_norm, ".weight"), heads ? a.head_dim : q));
    specs_.push_back(VectorSpec(prefix + Name(names_.k_norm, ".weight"), heads ? a.head_dim : kv));
  }

  void ListMlp() {
    const std::string prefix = prefix_ + std::string(names_.mlp);
    const auto list = [&](std::string_view name, int64_t n, int64_t k) {
      ListProjection(specs_, Name(prefix, name), n, k, c_.mlp_bias);
    };
    if (t_.mlp == MlpKind::kGated) list(names_.gate, c_.ffn_dim, c_.hidden_dim);
    if (t_.mlp == MlpKind::kFusedGate) {
      list(names_.gate_up, 2 * c_.ffn_dim, c_.hidden_dim);
    } else {
      list(names_.up, c_.ffn_dim, c_.hidden_dim);
    }
    list(names_.down, c_.hidden_dim, c_.ffn_dim);
  }

  const ModelConfig& c_;
  const LlamaTraits& t_;
  const DecoderNames& names_;
  std::string prefix_;  // of the block
  std::vector<WeightSpec> specs_;
};

class DecoderRun {
 public:
  DecoderRun(const ModelConfig& config, const LlamaTraits& traits, const Weights& weights,
             LayerOps& ops)
      : c_(config), t_(traits), w_(weights), ops_(ops) {}

  void Run() {
    const Weight& embedding = w_.Take();
    Act x =
        ops_.Dropout(Times(ops_.Embed(embedding), c_.embedding_multiplier), c_.embedding_dropout);
    for (int64_t layer = 0; layer < c_.n_layers; ++layer) x = Block(TakeLayer(layer), x, layer);
    const Norm norm = TakeNorm(t_.names.norm);
    // The head's input is rounded once, after the multiplier.
    const Act normed = c_.logit_multiplier == 1 ? InputNorm(norm, x)
                                                : Times(OutputNorm(norm, x), c_.logit_multiplier);
    const Weight& head = c_.tied_embeddings ? embedding : w_.Take();
    ops_.Logits(normed, head, t_.head_bias ? &w_.Take() : nullptr, c_.logit_cap);
    TANDEM_CHECK(w_.at_end());
  }

 private:
  struct Norm {
    bool is_present = false;
    const Weight *scale = nullptr, *bias = nullptr;
  };
  struct Layer {
    Norm attention_in;
    std::optional<Projection> qkv, q, k, v;
    Projection o;
    const Weight *q_norm, *k_norm;  // null without qk_norm
    Norm attention_out;
    Norm mlp_in;
    std::optional<ExpertMlp> experts;  // in place of the MLP
    std::optional<Projection> gate;    // kGated
    std::optional<Projection> up;      // or gate and up in one
    std::optional<Projection> down;
    Norm mlp_out;
  };

  // Braced initialisers evaluate in order, so members are taken in the order of DecoderLister.
  Layer TakeLayer(int64_t layer) {
    const bool qk_norm = t_.qk_norm != QkNorm::kNone;
    const bool has_mlp = !c_.HasExperts(layer);
    return {TakeNorm(t_.norms.attention_in),
            TakeIf(t_.fused_qkv, t_.biases.qkv),
            TakeIf(!t_.fused_qkv, t_.biases.qkv),
            TakeIf(!t_.fused_qkv, t_.biases.qkv),
            TakeIf(!t_.fused_qkv, t_.biases.qkv),
            TakeProjection(w_, t_.biases.o),
            qk_norm ? &w_.Take() : nullptr,
            qk_norm ? &w_.Take() : nullptr,
            TakeNorm(t_.norms.attention_out),
            TakeNorm(t_.norms.mlp_in),
            has_mlp ? std::nullopt : std::optional(TakeExpertMlp(w_, c_, t_.experts)),
            TakeIf(has_mlp && t_.mlp == MlpKind::kGated, c_.mlp_bias),
            TakeIf(has_mlp, c_.mlp_bias),
            TakeIf(has_mlp, c_.mlp_bias),
            TakeNorm(t_.norms.mlp_out)};
  }

  std::optional<Projection> TakeIf(bool holds, bool bias) {
    if (!holds) return std::nullopt;
    return TakeProjection(w_, bias);
  }

  Norm TakeNorm(std::string_view name) {
    Norm norm;
    norm.is_present = !name.empty();
    if (norm.is_present && HasScale(t_.norm)) norm.scale = &w_.Take();
    if (norm.is_present && HasBias(t_.norm)) norm.bias = &w_.Take();
    return norm;
  }

  Act Times(Act x, float factor) { return factor == 1 ? x : ops_.Scale(x, factor); }

  // For matrix products.
  Act InputNorm(const Norm& norm, Act x) {
    if (norm.is_present && t_.norm == NormKind::kRms) {
      return ops_.RmsNorm(x, *norm.scale, c_.norm_eps);
    }
    return OutputNorm(norm, x);
  }

  // For the residual stream, f32.
  Act OutputNorm(const Norm& norm, Act x) {
    if (!norm.is_present) return x;
    if (t_.norm == NormKind::kRms) return ops_.RmsNormF32(x, *norm.scale, c_.norm_eps);
    return ops_.LayerNorm(x, norm.scale, norm.bias, c_.norm_eps);
  }

  // The part of a branch's result that is added to the residual stream.
  Act Branch(const Norm& norm, Act y) {
    return ops_.Dropout(Times(OutputNorm(norm, y), c_.residual_multiplier), c_.dropout);
  }

  Act Block(const Layer& w, Act x, int64_t layer) {
    const Act h = InputNorm(w.attention_in, x);  // [rows, hidden_dim]
    const Act attended = ops_.Add(x, Branch(w.attention_out, SelfAttend(w, h, layer)));
    const bool shares_norm = t_.parallel && !w.mlp_in.is_present;
    const Act m = shares_norm ? h : InputNorm(w.mlp_in, t_.parallel ? x : attended);
    return ops_.Add(attended, Branch(w.mlp_out, RunMlp(w, m)));
  }

  Act SelfAttend(const Layer& w, Act h, int64_t layer) {
    const AttentionSpec spec = c_.LayerAttention(layer);
    const int64_t q_dim = spec.n_heads * spec.head_dim, kv_dim = spec.n_kv_heads * spec.head_dim;
    const Act qkv = w.qkv ? Project(ops_, h, *w.qkv) : Act{};
    const auto part = [&](const std::optional<Projection>& own, int64_t first, int64_t count) {
      const Act x = own              ? Project(ops_, h, *own)
                    : t_.qkv_by_head ? ops_.SliceHeads(qkv, spec.n_heads, first / spec.n_heads,
                                                       count / spec.n_heads)
                                     : ops_.ColumnsF32(qkv, first, count);
      return c_.clip_qkv == 0 ? x : ops_.Clamp(x, c_.clip_qkv);
    };
    const size_t q_table = c_.query_growth > 0 ? 1 : 0;
    const Act q = Rotate(part(w.q, 0, q_dim), w.q_norm, layer, q_table);
    const Act k = Rotate(part(w.k, q_dim, kv_dim), w.k_norm, layer, 0);
    const Act v = part(w.v, q_dim + kv_dim, kv_dim);
    return Project(ops_, ops_.Attention(q, k, v, spec, layer), w.o);
  }

  Act NormHeads(Act x, const Weight* norm) {
    return norm == nullptr ? x : ops_.RmsNormF32(x, *norm, c_.norm_eps);
  }

  // `more` is added to the layer's table.
  Act Rotate(Act x, const Weight* norm, int64_t layer, size_t more) {
    const int8_t table = c_.LayerRope(layer);
    if (table == ModelConfig::kNoRope) return NormHeads(x, norm);
    const size_t index = static_cast<size_t>(table) + more;
    if (norm != nullptr && t_.qk_norm_after_rope) return NormHeads(ops_.RopeF32(x, index), norm);
    return ops_.Rope(NormHeads(x, norm), index);
  }

  Act RunMlp(const Layer& w, Act x) {
    if (w.experts) return RunExpertMlp(ops_, x, *w.experts, c_);
    Act gate = w.gate ? Project(ops_, x, *w.gate) : Act{};
    Act up = Project(ops_, x, *w.up);  // [rows, ffn_dim], fused [rows, 2 * ffn_dim]
    if (t_.mlp == MlpKind::kPlain) {
      return Project(ops_, ops_.Activate(up, c_.activation), *w.down);
    }
    if (t_.mlp == MlpKind::kFusedGate) {
      gate = ops_.ColumnsF32(up, 0, c_.ffn_dim);
      up = ops_.ColumnsF32(up, c_.ffn_dim, c_.ffn_dim);
    }
    return Project(ops_, ops_.GatedActivation(gate, up, c_.activation), *w.down);
  }

  const ModelConfig& c_;
  const LlamaTraits& t_;
  WeightCursor w_;
  LayerOps& ops_;
};

RopeSpec RopeOf(const ModelConfig& c) {
  const int64_t rotary_dim = c.rotary_dim > 0 ? c.rotary_dim : c.attention.head_dim;
  RopeSpec rope = ScaledRope(rotary_dim, c.rope_theta, c.rope_scaling, c.max_context_len);
  rope.head_dim = c.attention.head_dim;
  return rope;
}

}  // namespace

LlamaTraits PlainTraits(const ModelConfig& c) { return {.biases = EqualBiases(c)}; }

std::vector<WeightSpec> ListLlamaWeights(const ModelConfig& c, const LlamaTraits& traits) {
  return DecoderLister(c, traits).Run();
}

std::vector<RopeSpec> ListLlamaRopes(const ModelConfig& c) {
  std::vector<RopeSpec> ropes = {RopeOf(c)};
  if (c.query_growth > 0) {
    ropes.push_back(ropes.front());
    ropes.back().growth = c.query_growth;
    ropes.back().growth_period = c.query_growth_period;
  }
  return ropes;
}

std::vector<RopeSpec> ListInterleavedRopes(const ModelConfig& c) {
  RopeSpec rope = RopeOf(c);
  rope.interleaved = true;
  return {rope};
}

void LlamaForward(const ModelConfig& c, const LlamaTraits& traits, const Weights& weights,
                  LayerOps& ops) {
  DecoderRun(c, traits, weights, ops).Run();
}

}  // namespace tandem::engine
