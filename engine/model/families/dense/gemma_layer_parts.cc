#include "engine/model/families/dense/gemma_layer_parts.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/io/json.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_layers.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

// Each kind of layer that shares keys needs an earlier layer of its kind to share with.
void CheckSharedLayers(const ModelConfig& c, const std::string& source) {
  const int64_t n_own = c.n_layers - c.gemma.n_shared_kv_layers;
  for (const bool windowed : {false, true}) {
    bool own = false, shared = false;
    for (int64_t layer = 0; layer < c.n_layers; ++layer) {
      if (IsWindowed(c, layer) == windowed) (layer < n_own ? own : shared) = true;
    }
    if (shared && !own) {
      throw Error(ErrorCode::kDataLoss,
                  source + ": field 'num_kv_shared_layers' (" +
                      std::to_string(c.gemma.n_shared_kv_layers) + ") leaves no '" +
                      (windowed ? kWindowedLayer : kFullLayer) + "' layer with keys of its own");
    }
  }
}

float Root(int64_t n) { return std::sqrt(static_cast<float>(n)); }

int64_t TokenCount(const ModelConfig& c) { return c.vocab_size; }
int64_t TokenRow(const ModelConfig& c, int64_t token) {
  return token < c.gemma.per_layer_vocab ? token : 0;
}

constexpr std::string_view kGgufCap = "final_logit_softcapping";
constexpr int64_t kUsualWindow = 512;

}  // namespace

void ParseGemmaLayers(const Json& json, const GemmaLayerDefaults& defaults, ModelConfig& c,
                      const std::string& source) {
  c.gemma.n_shared_kv_layers =
      JsonIntOr(json, "num_kv_shared_layers", defaults.n_shared, 0, c.n_layers - 1, source);
  if (c.gemma.n_shared_kv_layers >= c.n_layers) {  // the default
    throw Error(ErrorCode::kDataLoss, source + ": field 'num_kv_shared_layers' is absent, and " +
                                          std::to_string(c.n_layers) +
                                          " layers are too few for its default, " +
                                          std::to_string(defaults.n_shared));
  }
  c.gemma.per_layer_dim = JsonIntOr(json, "hidden_size_per_layer_input", 256,
                                    defaults.min_layer_dim, kMaxWidth / c.n_layers, source);
  if (c.gemma.per_layer_dim > 0) {
    c.gemma.per_layer_vocab =
        JsonIntOr(json, "vocab_size_per_layer_input", defaults.layer_vocab, 1, kMaxVocab, source);
  }
  CheckSharedLayers(c, source);
}

void WriteGemmaLayers(const ModelConfig& c, Json& json) {
  json["num_kv_shared_layers"] = c.gemma.n_shared_kv_layers;
  json["hidden_size_per_layer_input"] = c.gemma.per_layer_dim;
  json["vocab_size_per_layer_input"] =
      c.gemma.per_layer_dim > 0 ? c.gemma.per_layer_vocab : c.vocab_size;
}

void ListLayerInputs(std::vector<WeightSpec>& specs, const ModelConfig& c) {
  const int64_t width = c.n_layers * c.gemma.per_layer_dim;
  specs.push_back(
      EmbeddingSpec("model.embed_tokens_per_layer.weight", c.gemma.per_layer_vocab, width));
  specs.push_back(MatrixSpec("model.per_layer_model_projection.weight", width, c.hidden_dim));
  specs.push_back(VectorSpec("model.per_layer_projection_norm.weight", c.gemma.per_layer_dim));
}

Act RunLayerInputs(WeightCursor& w, const ModelConfig& c, Act x, LayerOps& ops) {
  const Act own = ops.Scale(ops.Embed(w.Take()), Root(c.gemma.per_layer_dim));
  const Act projected = ops.Scale(ops.Linear(x, w.Take(), nullptr), 1 / Root(c.hidden_dim));
  const Act normed = ops.RmsNormF32(projected, w.Take(), c.norm_eps);
  return ops.Scale(ops.Add(normed, own), std::sqrt(0.5f));
}

void ListLayerGate(std::vector<WeightSpec>& specs, const std::string& prefix,
                   const ModelConfig& c) {
  const int64_t dim = c.gemma.per_layer_dim;
  ListProjection(specs, prefix + "per_layer_input_gate", dim, c.hidden_dim, false);
  ListProjection(specs, prefix + "per_layer_projection", c.hidden_dim, dim, false);
  specs.push_back(VectorSpec(prefix + "post_per_layer_input_norm.weight", c.hidden_dim));
}

Act RunLayerGate(WeightCursor& w, const ModelConfig& c, Act x, Act inputs, int64_t layer,
                 LayerOps& ops) {
  const int64_t dim = c.gemma.per_layer_dim;
  const Act input = ops.ColumnsF32(inputs, layer * dim, dim);
  const Act gate = Project(ops, x, TakeProjection(w, false));
  const Act gated = ops.GatedActivation(gate, input, c.activation);
  const Act back = Project(ops, gated, TakeProjection(w, false));
  return ops.RmsNormF32(back, w.Take(), c.norm_eps);
}

bool SharesKeys(const ModelConfig& c, int64_t layer) {
  return layer >= c.n_layers - c.gemma.n_shared_kv_layers;
}

void ListNormedAttention(std::vector<WeightSpec>& specs, const std::string& prefix,
                         const ModelConfig& c, int64_t layer, bool has_values) {
  const std::string attn = prefix + "self_attn.";
  const AttentionSpec a = c.LayerAttention(layer);
  const int64_t hidden = c.hidden_dim;
  const int64_t q_dim = a.n_heads * a.head_dim, kv_dim = a.n_kv_heads * a.head_dim;
  ListProjection(specs, attn + "q_proj", q_dim, hidden, c.attention_bias);
  specs.push_back(VectorSpec(attn + "q_norm.weight", a.head_dim));
  if (!SharesKeys(c, layer)) {
    ListProjection(specs, attn + "k_proj", kv_dim, hidden, c.attention_bias);
    specs.push_back(VectorSpec(attn + "k_norm.weight", a.head_dim));
    if (has_values) ListProjection(specs, attn + "v_proj", kv_dim, hidden, c.attention_bias);
  }
  ListProjection(specs, attn + "o_proj", hidden, q_dim, c.attention_bias);
}

Act RunNormedAttention(WeightCursor& w, const ModelConfig& c, Act h, int64_t layer, bool has_values,
                       SharedKeysByKind& shared_keys, LayerOps& ops) {
  const AttentionSpec spec = c.LayerAttention(layer);
  const bool windowed = IsWindowed(c, layer);
  const size_t rope = windowed ? kGemmaLocalRope : kGemmaGlobalRope;
  SharedKeys& shared = shared_keys[windowed ? 1 : 0];
  const Act q_raw = Project(ops, h, TakeProjection(w, c.attention_bias));
  const Act q = ops.Rope(ops.RmsNormF32(q_raw, w.Take(), c.norm_eps), rope);
  if (!SharesKeys(c, layer)) {
    const Act k_raw = Project(ops, h, TakeProjection(w, c.attention_bias));
    const Act k = ops.Rope(ops.RmsNormF32(k_raw, w.Take(), c.norm_eps), rope);
    const Act v_raw = has_values ? Project(ops, h, TakeProjection(w, c.attention_bias)) : k_raw;
    shared = {k, ops.PlainRmsNorm(v_raw, spec.head_dim, c.norm_eps), layer};
  }
  return Project(ops, ops.Attention(q, shared.k, shared.v, spec, shared.layer),
                 TakeProjection(w, c.attention_bias));
}

const GgufOrder kGgufEveryToken{.count = TokenCount, .of = TokenRow};

void ReadGgufGemmaLayers(const GgufMetadata& metadata, int64_t n_shared, Json& json) {
  json["sliding_window"] = metadata.Int(kGgufWindow).value_or(kUsualWindow);
  ReadGgufCap(metadata, kGgufCap, "final_logit_softcapping", json);
  json["num_kv_shared_layers"] = metadata.Int(kGgufSharedKv).value_or(n_shared);
  json["vocab_size_per_layer_input"] = json["vocab_size"];
}

// llama.cpp requires a window, and has a cap unless the file says 0.
void AddGgufGemmaLayers(const ModelConfig& c, std::vector<GgufSetting>& settings) {
  const auto add = [&](std::string_view key, int64_t value) {
    settings.push_back({key, static_cast<uint32_t>(value)});
  };
  add(kGgufWindow, c.attention.window > 0 ? c.attention.window : kUsualWindow);
  settings.push_back({kGgufWindowPattern, WindowedLayers(c)});
  settings.push_back({kGgufLocalTheta, static_cast<float>(c.local_rope_theta)});
  add(kGgufSharedKv, c.gemma.n_shared_kv_layers);
  add(kGgufLayerInput, c.gemma.per_layer_dim);
  settings.push_back({kGgufCap, c.logit_cap});
}

bool IsGgufSharedKey(const GgufMetadata& metadata, int64_t n_shared, std::string_view tensor) {
  constexpr std::string_view kBlock = "blk.";
  if (!tensor.starts_with(kBlock)) return false;
  const char* const end = tensor.data() + tensor.size();
  int64_t block = 0;
  const auto [stop, failed] = std::from_chars(tensor.data() + kBlock.size(), end, block);
  if (failed != std::errc()) return false;
  const std::string_view name(stop, static_cast<size_t>(end - stop));
  const bool is_key =
      name == ".attn_k.weight" || name == ".attn_v.weight" || name == ".attn_k_norm.weight";
  const int64_t n_layers = GgufLayers(metadata);
  const int64_t shared = metadata.Int(kGgufSharedKv).value_or(n_shared);
  return is_key &&
         block >= n_layers - std::clamp<int64_t>(shared, 0, std::max<int64_t>(n_layers, 0));
}

}  // namespace tandem::engine
