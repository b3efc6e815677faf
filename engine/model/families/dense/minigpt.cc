// The miniGPT of the Keras and JAX tutorials: learned positions, post-norm blocks, biases
// everywhere, ReLU, no final norm. Checkpoints use the Flax NNX state paths joined with dots;
// kernels are stored input-first and attention heads have an axis of their own.

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/check.h"
#include "engine/io/json.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/hf_config.h"

namespace tandem::engine::minigpt {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"MiniGPT", "minigpt"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c;
  c.family = "minigpt";
  c.activation = Activation::kRelu;
  c.vocab_size = JsonInt(json, "vocab_size", 1, kMaxVocab, source);
  c.max_context_len = JsonInt(json, "maxlen", 1, kMaxContext, source);
  c.hidden_dim = JsonInt(json, "embed_dim", 1, kMaxWidth, source);
  c.ffn_dim = JsonInt(json, "feed_forward_dim", 1, kMaxWidth, source);
  c.n_layers = JsonInt(json, "num_transformer_blocks", 1, kMaxLayers, source);
  c.norm_eps = static_cast<float>(JsonNumberOr(json, "layer_norm_epsilon", 1e-6, 0, 1, source));
  c.dropout = ParseDropout(json, "dropout_rate", 0.1, source);
  c.bos_token = FirstToken(ParseTokenList(json, "bos_token_id", c.vocab_size, {}, source));
  c.eos_tokens = ParseTokenList(json, "eos_token_id", c.vocab_size, {}, source);

  AttentionSpec& a = c.attention;
  a.n_heads = JsonInt(json, "num_heads", 1, kMaxHeads, source);
  a.n_kv_heads = a.n_heads;
  a.head_dim = c.hidden_dim / a.n_heads;
  if (c.hidden_dim % a.n_heads != 0 || a.head_dim > kMaxHeadDim) {
    throw Error(ErrorCode::kDataLoss,
                source + ": field 'num_heads' must divide " + std::to_string(c.hidden_dim) +
                    " ('embed_dim') into heads of at most " + std::to_string(kMaxHeadDim) +
                    ", got " + std::to_string(a.n_heads));
  }
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  return Json{{"architectures", Json::array({"MiniGPT"})},
              {"model_type", "minigpt"},
              {"vocab_size", c.vocab_size},
              {"maxlen", c.max_context_len},
              {"embed_dim", c.hidden_dim},
              {"num_heads", c.attention.n_heads},
              {"feed_forward_dim", c.ffn_dim},
              {"num_transformer_blocks", c.n_layers},
              {"layer_norm_epsilon", ShortestDouble(c.norm_eps)},
              {"dropout_rate", ShortestDouble(c.dropout)},
              {"bos_token_id", c.bos_token < 0 ? Json(nullptr) : Json(c.bos_token)},
              {"eos_token_id", TokenListToJson(c.eos_tokens)}};
}

// A kernel [in.., out..], whose axes may be split into heads; flattened it is [k, n].
WeightSpec KernelSpec(std::string name, std::vector<int64_t> shape, int64_t n, int64_t k) {
  WeightSpec spec = MatrixSpec(std::move(name), n, k);
  spec.source_shape = std::move(shape);
  spec.layout = SourceLayout::kInOut;
  return spec;
}

WeightSpec HeadBiasSpec(std::string name, const AttentionSpec& a) {
  WeightSpec spec = VectorSpec(std::move(name), a.n_heads * a.head_dim);
  spec.source_shape = {a.n_heads, a.head_dim};
  return spec;
}

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  const AttentionSpec& a = c.attention;
  const int64_t d = c.hidden_dim, ff = c.ffn_dim, heads = a.n_heads * a.head_dim;
  std::vector<WeightSpec> specs;
  specs.push_back(EmbeddingSpec("embedding_layer.token_emb.embedding", c.vocab_size, d));
  specs.push_back(EmbeddingSpec("embedding_layer.pos_emb.embedding", c.max_context_len, d));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const std::string prefix = "transformer_blocks." + std::to_string(layer) + ".";
    for (const char* part : {"mha.query", "mha.key", "mha.value"}) {
      specs.push_back(KernelSpec(prefix + part + ".kernel", {d, a.n_heads, a.head_dim}, heads, d));
      specs.push_back(HeadBiasSpec(prefix + part + ".bias", a));
    }
    specs.push_back(KernelSpec(prefix + "mha.out.kernel", {a.n_heads, a.head_dim, d}, d, heads));
    specs.push_back(VectorSpec(prefix + "mha.out.bias", d));
    specs.push_back(VectorSpec(prefix + "layer_norm1.scale", d));
    specs.push_back(VectorSpec(prefix + "layer_norm1.bias", d));
    specs.push_back(KernelSpec(prefix + "linear1.kernel", {d, ff}, ff, d));
    specs.push_back(VectorSpec(prefix + "linear1.bias", ff));
    specs.push_back(KernelSpec(prefix + "linear2.kernel", {ff, d}, d, ff));
    specs.push_back(VectorSpec(prefix + "linear2.bias", d));
    specs.push_back(VectorSpec(prefix + "layer_norm2.scale", d));
    specs.push_back(VectorSpec(prefix + "layer_norm2.bias", d));
  }
  specs.push_back(KernelSpec("output_layer.kernel", {d, c.vocab_size}, c.vocab_size, d));
  specs.push_back(VectorSpec("output_layer.bias", c.vocab_size));
  return specs;
}

std::vector<RopeSpec> ListRopes(const ModelConfig&) { return {}; }

struct Layer {
  const Weight &q, &q_bias, &k, &k_bias, &v, &v_bias, &out, &out_bias;
  const Weight &norm1, &norm1_bias, &linear1, &linear1_bias;
  const Weight &linear2, &linear2_bias, &norm2, &norm2_bias;
};

// Braced initialisers evaluate in order, so members are taken in the order of ListWeights.
Layer TakeLayer(WeightCursor& w) {
  return {w.Take(), w.Take(), w.Take(), w.Take(), w.Take(), w.Take(), w.Take(), w.Take(),
          w.Take(), w.Take(), w.Take(), w.Take(), w.Take(), w.Take(), w.Take(), w.Take()};
}

Act Block(const Layer& w, const ModelConfig& c, Act x, int64_t layer, LayerOps& ops) {
  const Act q = ops.Linear(x, w.q, &w.q_bias);  // [rows, hidden_dim]
  const Act k = ops.Linear(x, w.k, &w.k_bias);
  const Act v = ops.Linear(x, w.v, &w.v_bias);
  const Act attended = ops.Linear(ops.Attention(q, k, v, c.attention, layer), w.out, &w.out_bias);
  x = ops.LayerNorm(ops.Add(x, ops.Dropout(attended, c.dropout)), &w.norm1, &w.norm1_bias,
                    c.norm_eps);
  const Act h = ops.Activate(ops.Linear(x, w.linear1, &w.linear1_bias), c.activation);
  const Act m = ops.Linear(h, w.linear2, &w.linear2_bias);
  return ops.LayerNorm(ops.Add(x, ops.Dropout(m, c.dropout)), &w.norm2, &w.norm2_bias, c.norm_eps);
}

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  WeightCursor w(weights);
  const Act tokens = ops.Embed(w.Take());
  Act x = ops.Add(tokens, ops.EmbedPositions(w.Take()));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    x = Block(TakeLayer(w), c, x, layer, ops);
  }
  const Weight &head = w.Take(), &head_bias = w.Take();
  ops.Logits(x, head, &head_bias, 0);
  TANDEM_CHECK(w.at_end());
}

void ShapeTiny(ModelConfig& c) {
  c.norm_eps = 1e-6f;
  c.activation = Activation::kRelu;
  c.dropout = 0.1f;
}

void CompleteFresh(ModelConfig& c) {
  if (c.ffn_dim == 0) c.ffn_dim = c.hidden_dim;
  c.activation = Activation::kRelu;
}

constexpr FreshFields kFresh{.ffn_dim = "the width", .complete = CompleteFresh};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "minigpt",
    .models = "miniGPT of the Keras and JAX tutorials",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListRopes,
    .forward = Forward,
    .shape_tiny = ShapeTiny,
    .fresh = &kFresh,
};

}  // namespace tandem::engine::minigpt
