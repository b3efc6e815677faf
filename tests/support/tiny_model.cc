#include "tests/support/tiny_model.h"

#include <stdlib.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "engine/base/error.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/tokenizer/training/bpe_trainer.h"

namespace tandem::tests {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kCorpus =
    "Once upon a time there was a little dog named Tom. Tom liked to play in the park with his "
    "friend Lily. One day Tom found a big red ball. \"Look!\" said Lily. They were very happy.\n";

void WriteText(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

}  // namespace

void WriteTinyModel(const std::filesystem::path& dir, const TinyModelOptions& options) {
  constexpr int64_t kHeads = 4;
  constexpr int64_t kKvHeads = 2;
  const int64_t hidden = options.hidden_dim;
  const int64_t ffn = 2 * hidden;
  const int64_t kv_dim = hidden / kHeads * kKvHeads;

  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes = {
      {"model.embed_tokens.weight", {options.vocab_size, hidden}},
      {"model.norm.weight", {hidden}},
      {"lm_head.weight", {options.vocab_size, hidden}}};
  for (int64_t layer = 0; layer < options.n_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    shapes.push_back({prefix + "input_layernorm.weight", {hidden}});
    shapes.push_back({prefix + "post_attention_layernorm.weight", {hidden}});
    shapes.push_back({prefix + "self_attn.q_proj.weight", {hidden, hidden}});
    shapes.push_back({prefix + "self_attn.k_proj.weight", {kv_dim, hidden}});
    shapes.push_back({prefix + "self_attn.v_proj.weight", {kv_dim, hidden}});
    shapes.push_back({prefix + "self_attn.o_proj.weight", {hidden, hidden}});
    shapes.push_back({prefix + "mlp.gate_proj.weight", {ffn, hidden}});
    shapes.push_back({prefix + "mlp.up_proj.weight", {ffn, hidden}});
    shapes.push_back({prefix + "mlp.down_proj.weight", {hidden, ffn}});
  }
  std::vector<std::vector<float>> values;
  std::vector<engine::NamedTensor> tensors;
  for (const auto& [name, shape] : shapes) {
    const bool is_norm = shape.size() == 1;
    std::vector<float> tensor(static_cast<size_t>(engine::ElementCount(shape)));
    const float scale = is_norm ? 0.1f : 1.0f / std::sqrt(static_cast<float>(shape.back()));
    for (float& value : tensor) value = normal(random) * scale + (is_norm ? 1.0f : 0.0f);
    values.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    tensors.push_back({shapes[i].first,
                       {reinterpret_cast<const std::byte*>(values[i].data()), engine::DType::kF32,
                        shapes[i].second}});
  }
  engine::WriteSafetensors(dir / "model.safetensors", tensors, {{"format", "pt"}});

  const Json config = {{"architectures", {"LlamaForCausalLM"}},
                       {"model_type", "llama"},
                       {"vocab_size", options.vocab_size},
                       {"hidden_size", hidden},
                       {"intermediate_size", ffn},
                       {"num_hidden_layers", options.n_layers},
                       {"num_attention_heads", kHeads},
                       {"num_key_value_heads", kKvHeads},
                       {"max_position_embeddings", options.max_context_len},
                       {"rms_norm_eps", 1e-5},
                       {"rope_theta", 10000.0},
                       {"hidden_act", "silu"},
                       {"tie_word_embeddings", false},
                       {"bos_token_id", 0},
                       {"eos_token_id", 1},
                       {"torch_dtype", "float32"}};
  WriteText(dir / "config.json", config.dump(2));
  if (!options.with_tokenizer) return;

  engine::BpeTrainerOptions trainer;
  trainer.vocab_size = options.vocab_size;
  trainer.special_tokens = options.special_tokens;
  WriteText(dir / "tokenizer.json", engine::TrainBpe(kCorpus, trainer, [](int64_t, int64_t) {}));
  Json tokenizer_config = {{"bos_token", "<bos>"}, {"eos_token", "<end>"}, {"add_bos_token", true}};
  if (!options.chat_template.empty()) tokenizer_config["chat_template"] = options.chat_template;
  WriteText(dir / "tokenizer_config.json", tokenizer_config.dump(2));
}

}  // namespace tandem::tests
