// Gemma 3n, text (Google 2025), as transformers' Gemma3nForCausalLM. Several streams of hidden
// states run beside each other; each layer predicts all of them, computes one and corrects all
// (AltUp, Baykal et al. 2023). Attention and the embedding of the token for every layer are Gemma
// 4's. Beside attention lies a residual of low rank (LAuReL, Menghani et al. 2024). In some layers
// a fixed share of the MLP's gates becomes 0. Norm scales are stored as they are. Only the text
// part of Gemma3nForConditionalGeneration is read.

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "engine/base/error.h"
#include "engine/io/json.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/dense/gemma3n_gguf.h"
#include "engine/model/families/dense/gemma_layer_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gemma_decoder.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_layers.h"
#include "engine/model/families/text_part.h"

namespace tandem::engine::gemma3n {

// The root of Phi(z) = share, by bisection.
float DeviationsOf(double share) {
  double low = -10, high = 10;
  for (int step = 0; step < 100; ++step) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < share ? low : high) = middle;
  }
  return static_cast<float>(low);
}

namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kArchitectures{
    "Gemma3nForCausalLM", "gemma3n_text", "Gemma3nForConditionalGeneration", "gemma3n"};

constexpr GemmaTraits kTraits{.output_norms = true, .qk_norm = true, .local_rope = true};
constexpr int64_t kPattern = 5;      // every layer has a window except each fifth
constexpr int64_t kMaxStreams = 16;  // one Mix reads no more
constexpr float kLeastSquare = 1e-5f;
constexpr double kSparsity = 0.95;  // of the first layers of a larger model
constexpr int64_t kSparseLayers = 10;

// `field` as one number for all layers or a list with one for each; null elements are refused.
std::vector<Json> ParseByLayer(const Json& value, const char* field, int64_t n_layers,
                               const std::string& source) {
  const auto n = static_cast<size_t>(n_layers);
  if (!value.is_array()) return std::vector<Json>(n, value);
  if (value.size() != n) {
    throw Error(ErrorCode::kDataLoss, source + ": field '" + field + "' must have a number for " +
                                          "each of " + std::to_string(n) + " layers, got " +
                                          std::to_string(value.size()));
  }
  return {value.begin(), value.end()};
}

// `intermediate_size`. The largest width stands for all in `config.ffn_dim`.
Json WithOneWidth(const Json& json, ModelConfig& parts, int64_t n_layers,
                  const std::string& source) {
  constexpr const char* kField = "intermediate_size";
  const auto found = json.find(kField);
  if (found == json.end() || !found->is_array()) return json;
  int64_t widest = 0;
  for (const Json& width : ParseByLayer(*found, kField, n_layers, source)) {
    const int64_t n = JsonInt(Json{{kField, width}}, kField, 1, kMaxWidth, source);
    parts.gemma.ffn_dims.push_back(n);
    widest = std::max(widest, n);
  }
  Json one = json;
  one[kField] = widest;
  return one;
}

void SetCuts(ModelConfig& c) {
  for (const double share : c.gemma.sparsity) c.gemma.cuts.push_back(DeviationsOf(share));
}

void ParseSparsity(const Json& json, ModelConfig& c, const std::string& source) {
  constexpr const char* kField = "activation_sparsity_pattern";
  const auto found = json.find(kField);
  if (found == json.end() || found->is_null()) {
    for (int64_t layer = 0; layer < c.n_layers; ++layer) {
      const bool sparse = c.n_layers > kSparseLayers && layer < kSparseLayers;
      c.gemma.sparsity.push_back(sparse ? kSparsity : 0);
    }
    return;
  }
  if (!found->is_array()) {
    throw Error(ErrorCode::kDataLoss, source + ": field '" + kField + "' must be a list");
  }
  for (const Json& share : ParseByLayer(*found, kField, c.n_layers, source)) {
    constexpr double kMost = 1 - 1e-6;
    if (!share.is_number()) {
      throw Error(ErrorCode::kDataLoss, source + ": field '" + kField + "' must hold numbers");
    }
    c.gemma.sparsity.push_back(JsonNumberOr(Json{{kField, share}}, kField, 0, 0, kMost, source));
  }
}

void ParseStreams(const Json& json, ModelConfig& c, const std::string& source) {
  GemmaParts& g = c.gemma;
  g.n_streams = JsonIntOr(json, "altup_num_inputs", 4, 1, kMaxStreams, source);
  g.active_stream = JsonIntOr(json, "altup_active_idx", 0, 0, g.n_streams - 1, source);
  g.scales_active = JsonBoolOr(json, "altup_correct_scale", true, source);
  g.coefficient_limit = ParseCap(json, "altup_coef_clip", 120, source);
  g.laurel_rank = JsonIntOr(json, "laurel_rank", 64, 1, kMaxWidth, source);
}

void SetLayerAttention(ModelConfig& c) {
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    AttentionSpec spec = c.attention;
    if (c.windowed_layers.empty() || !c.windowed_layers[static_cast<size_t>(layer)]) {
      spec.window = 0;
    }
    c.layer_attention.push_back(spec);
  }
}

ModelConfig ParseConfig(const Json& outer, const std::string& source) {
  const Json json = TextConfig(outer, source);
  RequireBool(json, "use_bidirectional_attention", false, source);
  constexpr int64_t kDefaultLayers = 35;
  const int64_t n_layers =
      JsonIntOr(json, "num_hidden_layers", kDefaultLayers, 1, kMaxLayers, source);
  ModelConfig by_layer;
  ModelConfig c = ParseDecoder(WithOneWidth(json, by_layer, n_layers, source),
                               {.vocab_size = 262400,
                                .hidden_dim = 2048,
                                .ffn_dim = 16384,
                                .n_layers = kDefaultLayers,
                                .n_heads = 8,
                                .n_kv_heads = 2,
                                .head_dim = 256,
                                .max_context_len = 32768,
                                .tied_embeddings = true,
                                .bos = {2},
                                .eos = {1}},
                               source);
  c.family = "gemma3n";
  c.gemma.ffn_dims = by_layer.gemma.ffn_dims;
  if (c.gemma.ffn_dims.empty()) {
    c.gemma.ffn_dims.assign(static_cast<size_t>(c.n_layers), c.ffn_dim);
  }
  c.activation = ParseActivation(json, "hidden_activation", "gelu_pytorch_tanh", source);
  c.logit_cap = ParseCap(json, "final_logit_softcapping", 30, source);
  c.attention.scale = 1;
  ParseWindowPattern(json, 512, kPattern, c, source);
  SetLayerAttention(c);
  ParseGemmaRopes(json, c, source);
  ParseGemmaLayers(json, {.min_layer_dim = 1, .n_shared = 15}, c, source);
  ParseStreams(json, c, source);
  ParseSparsity(json, c, source);
  SetCuts(c);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  const GemmaParts& g = c.gemma;
  Json json = WriteDecoder(c, "Gemma3nForCausalLM", "gemma3n_text");
  json.erase("hidden_act");
  json["hidden_activation"] = ActivationName(c.activation);
  json["rope_local_base_freq"] = c.local_rope_theta;
  json["intermediate_size"] = g.ffn_dims;
  json["final_logit_softcapping"] = CapToJson(c.logit_cap);
  json["sliding_window"] = c.attention.window > 0 ? Json(c.attention.window) : Json(512);
  json["layer_types"] = LayerTypesToJson(c);
  WriteGemmaLayers(c, json);
  json["altup_num_inputs"] = g.n_streams;
  json["altup_active_idx"] = g.active_stream;
  json["altup_correct_scale"] = g.scales_active;
  json["altup_coef_clip"] = CapToJson(g.coefficient_limit);
  json["laurel_rank"] = g.laurel_rank;
  json["activation_sparsity_pattern"] = g.sparsity;
  return json;
}

ModelConfig MlpConfig(const ModelConfig& c, int64_t layer) {
  ModelConfig mlp = c;
  mlp.ffn_dim = c.gemma.ffn_dims[static_cast<size_t>(layer)];
  return mlp;
}

void ListStreams(std::vector<WeightSpec>& specs, const std::string& prefix, const ModelConfig& c) {
  const int64_t n = c.gemma.n_streams, hidden = c.hidden_dim;
  specs.push_back(VectorSpec(prefix + "router_norm.weight", hidden));
  specs.push_back(MatrixSpec(prefix + "modality_router.weight", n, hidden));
  specs.push_back(MatrixSpec(prefix + "prediction_coefs.weight", n * n, n));
  specs.push_back(MatrixSpec(prefix + "correction_coefs.weight", n, n));
  specs.push_back(VectorSpec(prefix + "correct_output_scale", hidden));
}

void ListLayer(std::vector<WeightSpec>& specs, const ModelConfig& c, int64_t layer) {
  const std::string prefix = LayerPrefix(layer);
  const auto norm = [&](const char* name) {
    specs.push_back(VectorSpec(prefix + name + ".weight", c.hidden_dim));
  };
  ListStreams(specs, prefix + "altup.", c);
  norm("input_layernorm");
  ListProjection(specs, prefix + "laurel.linear_left", c.gemma.laurel_rank, c.hidden_dim, false);
  ListProjection(specs, prefix + "laurel.linear_right", c.hidden_dim, c.gemma.laurel_rank, false);
  norm("laurel.post_laurel_norm");
  ListNormedAttention(specs, prefix, c, layer, true);
  norm("post_attention_layernorm");
  norm("pre_feedforward_layernorm");
  ListGatedMlp(specs, prefix + "mlp", MlpConfig(c, layer));
  norm("post_feedforward_layernorm");
  ListLayerGate(specs, prefix, c);
}

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs;
  specs.push_back(EmbeddingSpec("model.embed_tokens.weight", c.vocab_size, c.hidden_dim));
  ListLayerInputs(specs, c);
  const auto list_streams = [&](const std::string& name) {
    for (int64_t i = 0; i + 1 < c.gemma.n_streams; ++i) {
      specs.push_back(MatrixSpec("model." + name + "." + std::to_string(i) + ".weight",
                                 c.hidden_dim, c.hidden_dim));
    }
  };
  list_streams("altup_projections");
  for (int64_t layer = 0; layer < c.n_layers; ++layer) ListLayer(specs, c, layer);
  list_streams("altup_unembed_projections");
  ListHead(specs, VectorSpec("model.norm.weight", c.hidden_dim), c);
  AddMultimodalNames(specs);
  return specs;
}

// Weights of a layer's AltUp.
struct StreamWeights {
  const Weight &norm, &router, &predict, &correct, &scale;
};

// From a row, n_streams numbers in (-1, 1): [rows, n_streams].
Act Modalities(const StreamWeights& w, const ModelConfig& c, Act x, LayerOps& ops) {
  const Act normed =
      ops.Scale(ops.RmsNormF32(x, w.norm, c.norm_eps), 1 / static_cast<float>(c.hidden_dim));
  return ops.SoftCap(ops.Linear(normed, w.router, nullptr), 1);
}

// No vector: a step must not allocate.
class Streams {
 public:
  void Add(Act x) { acts_[size_++] = x; }
  size_t size() const { return size_; }
  std::span<const Act> all() const { return std::span(acts_).first(size_); }
  const Act& operator[](size_t i) const { return acts_[i]; }
  Act& operator[](size_t i) { return acts_[i]; }

 private:
  std::array<Act, kMaxStreams> acts_;
  size_t size_ = 0;
};

Streams Predict(const StreamWeights& w, const ModelConfig& c, const Streams& streams,
                LayerOps& ops) {
  const int64_t n = c.gemma.n_streams;
  const Act known = Modalities(w, c, streams[static_cast<size_t>(c.gemma.active_stream)], ops);
  const Act factors = ops.Linear(known, w.predict, nullptr);  // [rows, n * n]
  Streams predicted;
  for (int64_t i = 0; i < n; ++i) {
    const Act mixed = ops.Mix(streams.all(), factors, i * n, 0);
    predicted.Add(ops.Add(mixed, streams[static_cast<size_t>(i)]));
  }
  return predicted;
}

Streams Correct(const StreamWeights& w, const ModelConfig& c, const Streams& predicted,
                Act computed, LayerOps& ops) {
  const Act active = predicted[static_cast<size_t>(c.gemma.active_stream)];
  const Act factors = ops.Linear(Modalities(w, c, computed, ops), w.correct, nullptr);
  const Act news = ops.Add(computed, ops.Scale(active, -1));
  Streams corrected;
  for (int64_t i = 0; i < c.gemma.n_streams; ++i) {
    const Act change = ops.Mix({&news, 1}, factors, i, 1);
    corrected.Add(ops.Add(change, predicted[static_cast<size_t>(i)]));
  }
  return corrected;
}

Act RunMlp(WeightCursor& w, const ModelConfig& c, Act h, int64_t layer, LayerOps& ops) {
  const GatedMlp mlp = TakeGatedMlp(w, c);
  if (c.gemma.sparsity[static_cast<size_t>(layer)] == 0) return RunGatedMlp(ops, h, mlp, c);
  const float cut = c.gemma.cuts[static_cast<size_t>(layer)];
  const Act gate = ops.AboveCut(Project(ops, h, mlp.gate), cut);
  return Project(ops, ops.GatedActivation(gate, Project(ops, h, mlp.up), c.activation), mlp.down);
}

// The computed stream of a layer, from its prediction x.
Act Compute(WeightCursor& w, const ModelConfig& c, Act x, int64_t layer, SharedKeysByKind& shared,
            LayerOps& ops) {
  const Act h = ops.RmsNormF32(x, w.Take(), c.norm_eps);
  const Act left = Project(ops, h, TakeProjection(w, false));
  const Act right = Project(ops, left, TakeProjection(w, false));
  const Act laurel = ops.Add(h, ops.RmsNormF32(right, w.Take(), c.norm_eps));
  const Act attended = RunNormedAttention(w, c, h, layer, true, shared, ops);
  const Act a = ops.Add(x, ops.RmsNormF32(attended, w.Take(), c.norm_eps));
  x = ops.Scale(ops.Add(a, laurel), 1 / std::sqrt(2.0f));
  const Act m = RunMlp(w, c, ops.RmsNorm(x, w.Take(), c.norm_eps), layer, ops);
  return ops.Add(x, ops.RmsNormF32(m, w.Take(), c.norm_eps));
}

Streams Block(WeightCursor& w, const ModelConfig& c, const Streams& streams, Act inputs,
              int64_t layer, SharedKeysByKind& shared, LayerOps& ops) {
  const StreamWeights altup{w.Take(), w.Take(), w.Take(), w.Take(), w.Take()};
  const auto active = static_cast<size_t>(c.gemma.active_stream);
  const Streams predicted = Predict(altup, c, streams, ops);
  const Act computed = Compute(w, c, predicted[active], layer, shared, ops);
  Streams corrected = Correct(altup, c, predicted, computed, ops);
  const Act first =
      c.gemma.scales_active ? ops.ScaleColumns(corrected[active], altup.scale) : corrected[active];
  const Act input = RunLayerGate(w, c, first, inputs, layer, ops);
  // Stream 0 gets none, whichever is active.
  for (size_t i = 1; i < corrected.size(); ++i) corrected[i] = ops.Add(corrected[i], input);
  return corrected;
}

Streams Spread(WeightCursor& w, const ModelConfig& c, Act x, LayerOps& ops) {
  Streams streams;
  streams.Add(x);
  for (int64_t i = 1; i < c.gemma.n_streams; ++i) {
    streams.Add(ops.MatchMagnitude(ops.Linear(x, w.Take(), nullptr), x, kLeastSquare));
  }
  return streams;
}

// The mean of all streams, brought to the magnitude of the first.
Act Gather(WeightCursor& w, const Streams& streams, LayerOps& ops) {
  Act sum = streams[0];
  for (size_t i = 1; i < streams.size(); ++i) {
    const Act back = ops.Linear(streams[i], w.Take(), nullptr);
    sum = ops.Add(sum, ops.MatchMagnitude(back, streams[0], kLeastSquare));
  }
  return ops.Scale(sum, 1 / static_cast<float>(streams.size()));
}

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  WeightCursor w(weights);
  const Weight& embedding = w.Take();
  const Act x = ops.Scale(ops.Embed(embedding), std::sqrt(static_cast<float>(c.hidden_dim)));
  const Act inputs = RunLayerInputs(w, c, x, ops);
  Streams streams = Spread(w, c, x, ops);
  SharedKeysByKind shared;
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    streams = Block(w, c, streams, inputs, layer, shared, ops);
  }
  RunHead(ops, w, embedding, c, Gather(w, streams, ops));
}

void ShapeTiny(ModelConfig& c) {
  c.n_layers = 5;
  c.norm_eps = 1e-6f;
  c.activation = Activation::kGeluTanh;
  c.tied_embeddings = true;
  c.logit_cap = 30;
  c.rope_theta = 1000000;
  c.attention.n_kv_heads = 2;
  c.attention.scale = 1;
  c.attention.window = kTinyWindow;
  c.gemma = {.per_layer_dim = 8,
             .per_layer_vocab = c.vocab_size - 10,
             .n_shared_kv_layers = 2,
             .n_streams = 3,
             .active_stream = 1,
             .coefficient_limit = 120,
             .laurel_rank = 6,
             .ffn_dims = {c.ffn_dim, c.ffn_dim, c.ffn_dim - 6, c.ffn_dim, c.ffn_dim},
             .sparsity = {0.6, 0, 0.3, 0, 0.75}};
  c.windowed_layers = {true, false, true, true, false};
  SetLayerAttention(c);
  SetCuts(c);
}

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "gemma3n",
    .models = "Gemma 3n (text)",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListGemmaRopes<kTraits>,
    .forward = Forward,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
};

}  // namespace tandem::engine::gemma3n
