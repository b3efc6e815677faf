// GPT-2 (Radford et al. 2019), as transformers' GPT2LMHeadModel: pre-norm blocks with learned
// positions, LayerNorms, biases everywhere and a GELU. Linear layers are stored input-first
// ("Conv1D"), with q, k and v in one.

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/check.h"
#include "engine/io/json.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/hf_config.h"

namespace tandem::engine::gpt2 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"GPT2LMHeadModel", "gpt2"};
constexpr TokenId kEndOfText = 50256;

AttentionSpec ParseHeads(const Json& json, int64_t hidden_dim, const std::string& source) {
  AttentionSpec a;
  a.n_heads = JsonIntOr(json, "n_head", 12, 1, kMaxHeads, source);
  a.n_kv_heads = a.n_heads;
  a.head_dim = hidden_dim / a.n_heads;
  if (hidden_dim % a.n_heads != 0 || a.head_dim > kMaxHeadDim) {
    throw Error(ErrorCode::kDataLoss,
                source + ": field 'n_head' must divide " + std::to_string(hidden_dim) +
                    " ('n_embd') into heads of at most " + std::to_string(kMaxHeadDim) + ", got " +
                    std::to_string(a.n_heads));
  }
  if (JsonBoolOr(json, "scale_attn_weights", true, source)) {
    a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
  }
  for (const char* field : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    RequireBool(json, field, false, source);
  }
  return a;
}

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  // Absent keys have the defaults of transformers' GPT2Config.
  ModelConfig c;
  c.family = "gpt2";
  c.vocab_size = JsonIntOr(json, "vocab_size", 50257, 1, kMaxVocab, source);
  c.hidden_dim = JsonIntOr(json, "n_embd", 768, 1, kMaxWidth / 3, source);
  c.ffn_dim = JsonIntOr(json, "n_inner", 4 * c.hidden_dim, 1, kMaxWidth, source);
  c.n_layers = JsonIntOr(json, "n_layer", 12, 1, kMaxLayers, source);
  c.max_context_len = JsonIntOr(json, "n_positions", 1024, 1, kMaxContext, source);
  c.norm_eps = static_cast<float>(JsonNumberOr(json, "layer_norm_epsilon", 1e-5, 0, 1, source));
  c.activation = ParseActivation(json, "activation_function", "gelu_new", source);
  c.tied_embeddings = JsonBoolOr(json, "tie_word_embeddings", true, source);
  c.dropout = ParseDropout(json, "resid_pdrop", 0.1, source);
  c.embedding_dropout = ParseDropout(json, "embd_pdrop", 0.1, source);
  c.bos_token =
      FirstToken(ParseTokenList(json, "bos_token_id", c.vocab_size, {kEndOfText}, source));
  c.eos_tokens = ParseTokenList(json, "eos_token_id", c.vocab_size, {kEndOfText}, source);
  c.attention = ParseHeads(json, c.hidden_dim, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  return Json{{"architectures", Json::array({"GPT2LMHeadModel"})},
              {"model_type", "gpt2"},
              {"vocab_size", c.vocab_size},
              {"n_embd", c.hidden_dim},
              {"n_inner", c.ffn_dim},
              {"n_layer", c.n_layers},
              {"n_head", c.attention.n_heads},
              {"n_positions", c.max_context_len},
              {"activation_function", ActivationName(c.activation)},
              {"layer_norm_epsilon", ShortestDouble(c.norm_eps)},
              {"scale_attn_weights", c.attention.head_dim == 1 || c.attention.scale != 1},
              {"resid_pdrop", ShortestDouble(c.dropout)},
              {"embd_pdrop", ShortestDouble(c.embedding_dropout)},
              {"attn_pdrop", 0.0},
              {"tie_word_embeddings", c.tied_embeddings},
              {"bos_token_id", c.bos_token < 0 ? Json(nullptr) : Json(c.bos_token)},
              {"eos_token_id", TokenListToJson(c.eos_tokens)}};
}

// A "Conv1D": kernel [in, out] and bias.
void ListConv(std::vector<WeightSpec>& specs, const std::string& name, int64_t n, int64_t k) {
  WeightSpec& kernel = specs.emplace_back(MatrixSpec(name + ".weight", n, k));
  kernel.source_shape = {k, n};
  kernel.layout = SourceLayout::kInOut;
  specs.push_back(VectorSpec(name + ".bias", n));
}

void ListLayerNorm(std::vector<WeightSpec>& specs, const std::string& name, int64_t n) {
  specs.push_back(VectorSpec(name + ".weight", n));
  specs.push_back(VectorSpec(name + ".bias", n));
}

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  const int64_t d = c.hidden_dim, attended = c.attention.n_heads * c.attention.head_dim;
  std::vector<WeightSpec> specs;
  specs.push_back(EmbeddingSpec("wte.weight", c.vocab_size, d));
  specs.push_back(EmbeddingSpec("wpe.weight", c.max_context_len, d));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const std::string prefix = "h." + std::to_string(layer) + ".";
    ListLayerNorm(specs, prefix + "ln_1", d);
    ListConv(specs, prefix + "attn.c_attn", 3 * attended, d);
    ListConv(specs, prefix + "attn.c_proj", d, attended);
    ListLayerNorm(specs, prefix + "ln_2", d);
    ListConv(specs, prefix + "mlp.c_fc", c.ffn_dim, d);
    ListConv(specs, prefix + "mlp.c_proj", d, c.ffn_dim);
  }
  ListLayerNorm(specs, "ln_f", d);
  // The hub's files use these names; files that transformers saves begin with "transformer.".
  for (WeightSpec& spec : specs) spec.aliases = {"transformer." + spec.name};
  if (!c.tied_embeddings) specs.push_back(MatrixSpec("lm_head.weight", c.vocab_size, d));
  return specs;
}

std::vector<RopeSpec> ListRopes(const ModelConfig&) { return {}; }

struct Layer {
  const Weight &norm1, &norm1_bias, &qkv, &qkv_bias, &out, &out_bias;
  const Weight &norm2, &norm2_bias, &up, &up_bias, &down, &down_bias;
};

// Braced initialisers evaluate in order, so members are taken in the order of ListWeights.
Layer TakeLayer(WeightCursor& w) {
  return {w.Take(), w.Take(), w.Take(), w.Take(), w.Take(), w.Take(),
          w.Take(), w.Take(), w.Take(), w.Take(), w.Take(), w.Take()};
}

Act Block(const Layer& w, const ModelConfig& c, Act x, int64_t layer, LayerOps& ops) {
  const int64_t d = c.attention.n_heads * c.attention.head_dim;
  const Act h = ops.LayerNorm(x, &w.norm1, &w.norm1_bias, c.norm_eps);
  const Act qkv = ops.Linear(h, w.qkv, &w.qkv_bias);  // [rows, 3 * d]
  const Act q = ops.Columns(qkv, 0, d);
  const Act k = ops.Columns(qkv, d, d);
  const Act v = ops.Columns(qkv, 2 * d, d);
  const Act attended = ops.Attention(q, k, v, c.attention, layer);
  x = ops.Add(x, ops.Dropout(ops.Linear(attended, w.out, &w.out_bias), c.dropout));
  const Act m = ops.LayerNorm(x, &w.norm2, &w.norm2_bias, c.norm_eps);
  const Act up = ops.Activate(ops.Linear(m, w.up, &w.up_bias), c.activation);
  return ops.Add(x, ops.Dropout(ops.Linear(up, w.down, &w.down_bias), c.dropout));
}

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  WeightCursor w(weights);
  const Weight& embedding = w.Take();
  const Act tokens = ops.Embed(embedding);
  const Act positions = ops.EmbedPositions(w.Take());
  Act x = ops.Dropout(ops.Add(tokens, positions), c.embedding_dropout);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    x = Block(TakeLayer(w), c, x, layer, ops);
  }
  const Weight &norm = w.Take(), &norm_bias = w.Take();
  const Act normed = ops.LayerNorm(x, &norm, &norm_bias, c.norm_eps);
  ops.Logits(normed, c.tied_embeddings ? embedding : w.Take(), nullptr, 0);
  TANDEM_CHECK(w.at_end());
}

void ShapeTiny(ModelConfig& c) {
  c.activation = Activation::kGeluTanh;
  c.tied_embeddings = true;
  c.dropout = c.embedding_dropout = 0.1f;
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  json["n_embd"] = metadata.RequiredInt("embedding_length");
  json["n_inner"] = metadata.RequiredInt("feed_forward_length");
  json["n_layer"] = metadata.RequiredInt("block_count");
  json["n_head"] = metadata.RequiredInt("attention.head_count");
  json["n_positions"] = metadata.RequiredInt("context_length");
  json["activation_function"] = "gelu_new";
  json["layer_norm_epsilon"] = Shortest(metadata.RequiredNumber(kGgufLayerNormEps));
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = GgufSizes(c);
  settings.push_back({kGgufLayerNormEps, c.norm_eps});
  return settings;
}

std::string RequireScaledScores(const ModelConfig& c) {
  return c.attention.head_dim == 1 || c.attention.scale != 1 ? "" : "'scale_attn_weights': false";
}

constexpr auto kGgufParts = std::to_array<GgufPart>({
    {"attn_norm", "ln_1"},
    {"attn_qkv", "attn.c_attn", GgufChange::kTransposed},
    {"attn_output", "attn.c_proj", GgufChange::kTransposed},
    {"ffn_norm", "ln_2"},
    {"ffn_up", "mlp.c_fc", GgufChange::kTransposed},
    {"ffn_down", "mlp.c_proj", GgufChange::kTransposed},
});
constexpr auto kGgufEnds = std::to_array<GgufPart>({
    {"token_embd", "wte"},
    {"position_embd", "wpe"},
    {"output_norm", "ln_f"},
    {"output", "lm_head"},
});
constexpr auto kGgufLimits = std::to_array<GgufLimit>({RequireTanhGelu, RequireScaledScores});
constexpr GgufArchitecture kGguf{.name = "gpt2",
                                 .parts = kGgufParts,
                                 .ends = kGgufEnds,
                                 .block = "h.",
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "gpt2",
    .models = "GPT-2, DistilGPT-2",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListRopes,
    .forward = Forward,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
};

}  // namespace tandem::engine::gpt2
