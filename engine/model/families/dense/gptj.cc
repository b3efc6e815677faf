// GPT-J (Wang and Komatsuzaki 2021), as transformers' GPTJForCausalLM: attention without biases and
// a GELU MLP of one LayerNorm, both added; rope on neighbouring dimensions of a part of each head.

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/io/json.h"
#include "engine/model/families/family.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/llama_decoder.h"

namespace tandem::engine::gptj {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"GPTJForCausalLM", "gptj"};

constexpr TokenId kEndOfText = 50256;

// This class has GPT-2's keys for sizes.
Json WithSharedKeys(Json json) {
  for (const auto& [own, shared] :
       {std::pair{"n_embd", "hidden_size"}, std::pair{"n_layer", "num_hidden_layers"},
        std::pair{"n_head", "num_attention_heads"}, std::pair{"n_inner", "intermediate_size"},
        std::pair{"n_positions", "max_position_embeddings"}}) {
    if (json.contains(own)) json[shared] = json[own];
  }
  return json;
}

ModelConfig ParseConfig(const Json& given, const std::string& source) {
  const Json json = WithSharedKeys(given);
  const int64_t hidden = JsonIntOr(json, "hidden_size", 4096, 1, kMaxWidth / 4, source);
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 50400,
                                .hidden_dim = 4096,
                                .ffn_dim = 4 * hidden,
                                .n_layers = 28,
                                .n_heads = 16,
                                .max_context_len = 2048,
                                .bos = {kEndOfText},
                                .eos = {kEndOfText}},
                               source);
  c.family = "gptj";
  RequireKeysOfEachHead(c, "n_head", "n_embd", source);
  ParseNormEps(json, "layer_norm_epsilon", 1e-5, c, source);
  const int64_t head_dim = c.attention.head_dim;
  const int64_t rotary = JsonIntOr(json, "rotary_dim", 64, 2, kMaxHeadDim, source);
  if (rotary > head_dim || rotary % 2 != 0) {
    throw Error(ErrorCode::kDataLoss, source + ": field 'rotary_dim' must be even and at most " +
                                          std::to_string(head_dim) + ", got " +
                                          std::to_string(rotary));
  }
  c.rotary_dim = rotary == head_dim ? 0 : rotary;
  c.activation = ParseActivation(json, "activation_function", "gelu_new", source);
  c.attention_bias = false;  // not a key of this class
  c.mlp_bias = true;
  c.dropout = ParseDropout(json, "resid_pdrop", 0, source);
  c.embedding_dropout = ParseDropout(json, "embd_pdrop", 0, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  const int64_t rotary = c.rotary_dim > 0 ? c.rotary_dim : c.attention.head_dim;
  return Json{{"architectures", Json::array({"GPTJForCausalLM"})},
              {"model_type", "gptj"},
              {"vocab_size", c.vocab_size},
              {"n_embd", c.hidden_dim},
              {"n_inner", c.ffn_dim},
              {"n_layer", c.n_layers},
              {"n_head", c.attention.n_heads},
              {"n_positions", c.max_context_len},
              {"rotary_dim", rotary},
              {"activation_function", ActivationName(c.activation)},
              {"layer_norm_epsilon", ShortestDouble(c.norm_eps)},
              {"resid_pdrop", ShortestDouble(c.dropout)},
              {"embd_pdrop", ShortestDouble(c.embedding_dropout)},
              {"tie_word_embeddings", c.tied_embeddings},
              {"bos_token_id", c.bos_token < 0 ? Json(nullptr) : Json(c.bos_token)},
              {"eos_token_id", TokenListToJson(c.eos_tokens)}};
}

LlamaTraits Traits(const ModelConfig&) {
  LlamaTraits traits{.norm = NormKind::kLayer,
                     .norms = {.attention_in = "ln_1", .mlp_in = ""},
                     .mlp = MlpKind::kPlain,
                     .parallel = true,
                     .head_bias = true};
  traits.names.embedding = "transformer.wte";
  traits.names.layers = "transformer.h.";
  traits.names.norm = "transformer.ln_f";
  traits.names.attention = "attn.";
  traits.names.o = "out_proj";
  traits.names.up = "fc_in";
  traits.names.down = "fc_out";
  return traits;
}

void ShapeTiny(ModelConfig& c) {
  c.rotary_dim = 4;
  c.activation = Activation::kGeluTanh;
  c.mlp_bias = true;
  c.dropout = c.embedding_dropout = 0.1f;
}

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "gptj",
    .models = "GPT-J",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<Traits>,
    .list_ropes = ListInterleavedRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTiny,
};

}  // namespace tandem::engine::gptj
