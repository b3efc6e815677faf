#include "bench/make_model.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/models/random_model.h"
#include "engine/base/check.h"
#include "engine/io/atomic_write.h"
#include "engine/model/families/config.h"

namespace tandem::bench {
namespace {

namespace fs = std::filesystem;
using SortedJson = nlohmann::json;  // sorted: the ordered kind needs linear time per key

constexpr int kEndOfText = 256;
constexpr const char* kEndOfTextName = "<|endoftext|>";

constexpr const char* kChatTemplate =
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

// Small enough that the server's own work dominates.
engine::ModelConfig Llama15MConfig() {
  engine::ModelConfig c;
  c.family = "llama";
  c.n_layers = 6;
  c.hidden_dim = 288;
  c.ffn_dim = 768;
  c.vocab_size = 32000;
  c.max_context_len = 8192;
  c.attention = {.n_heads = 6, .n_kv_heads = 6, .head_dim = 48};
  c.attention.scale = static_cast<float>(1 / std::sqrt(48.0));
  c.norm_eps = 1e-6f;
  c.rope_theta = 10000;
  c.tied_embeddings = true;
  return c;
}

// Two layers; nearly all weights are in the tables of a large vocabulary.
engine::ModelConfig WithLargeVocabulary(engine::ModelConfig c) {
  c.n_layers = 2;
  c.hidden_dim = 512;
  c.ffn_dim = 1024;
  c.vocab_size = 262144;
  c.max_context_len = 8192;
  return c;
}

engine::ModelConfig Llama256KConfig() {
  engine::ModelConfig c = WithLargeVocabulary(Llama1BConfig());
  c.attention.n_heads = 8;
  c.attention.n_kv_heads = 4;
  c.tied_embeddings = false;
  return c;
}

engine::ModelConfig Gemma256KConfig() {
  engine::ModelConfig c = WithLargeVocabulary(Gemma2BConfig());
  c.windowed_layers.resize(static_cast<size_t>(c.n_layers));
  return c;
}

// The tables are small: a token mostly reads experts.
engine::ModelConfig Qwen3MoeCutConfig() {
  engine::ModelConfig c = Qwen3MoeConfig(4);
  c.vocab_size = 32000;
  c.bos_token = -1;
  c.eos_tokens = {2};
  return c;
}

// gpt-oss-20b with fewer layers and small tables. Experts are written as plain numbers.
engine::ModelConfig GptOssCutConfig() {
  engine::ModelConfig c;
  c.family = "gpt_oss";
  c.n_layers = 4;
  c.hidden_dim = 2880;
  c.ffn_dim = 2880;
  c.vocab_size = 32000;
  c.max_context_len = 131072;
  c.norm_eps = 1e-5f;
  c.attention = {.n_heads = 64, .n_kv_heads = 8, .head_dim = 64, .scale = 0.125f, .window = 128};
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    c.windowed_layers.push_back(layer % 2 == 0);
  }
  c.attention_bias = true;
  c.activation = engine::Activation::kClampedSwiglu;
  c.experts.router = {.n_experts = 32, .top_k = 4, .softmax_of_chosen = true};
  c.experts.ffn_dim = 2880;
  c.rope_theta = 150000;
  c.rope_scaling = {.kind = engine::RopeKind::kYarn,
                    .factor = 32,
                    .original_max_positions = 4096,
                    .attention_factor = 1.3465735902799727,
                    .truncate = false};
  c.eos_tokens = {2};
  return c;
}

// The tables are small: a token mostly reads layers.
engine::ModelConfig Qwen35CutConfig() {
  engine::ModelConfig c;
  c.family = "qwen3_5";
  c.n_layers = 8;
  c.hidden_dim = 2560;
  c.ffn_dim = 9216;
  c.vocab_size = 32000;
  c.max_context_len = 32768;
  c.norm_eps = 1e-6f;
  c.attention = {.n_heads = 16, .n_kv_heads = 4, .head_dim = 256, .scale = 1 / 16.0f};
  c.rotary_dim = 64;
  c.rope_theta = 1e7;
  c.tied_embeddings = true;
  c.recurrent.delta = {.n_k_heads = 16, .n_v_heads = 32, .k_dim = 128, .v_dim = 128};
  c.recurrent.conv = {
      .channels = c.recurrent.delta.inputs(), .kernel = 4, .form = engine::ConvForm::kSilu};
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    c.recurrent.layers.push_back((layer + 1) % 4 != 0);
  }
  return c;
}

engine::ModelConfig Mamba2CutConfig() {
  engine::ModelConfig c;
  c.family = "mamba2";
  c.n_layers = 16;
  c.hidden_dim = 2560;
  c.vocab_size = 32000;
  c.max_context_len = 32768;
  c.attention = {.n_heads = 1, .n_kv_heads = 1, .head_dim = 2};
  c.tied_embeddings = true;
  c.recurrent.scan = {.n_heads = 80, .head_dim = 64, .n_groups = 1, .state_dim = 128};
  c.recurrent.conv = {
      .channels = c.recurrent.scan.inputs(), .kernel = 4, .form = engine::ConvForm::kSilu};
  c.recurrent.conv_bias = true;
  c.recurrent.layers.assign(static_cast<size_t>(c.n_layers), true);
  c.ffn_dim = c.recurrent.scan.outputs();
  return c;
}

// Returns GPT-2's printable characters for bytes, as UTF-8. Printable Latin-1 stays; the other
// bytes follow from U+0100 in order.
std::vector<std::string> ByteCharacters() {
  std::vector<std::string> characters;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints =
        (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const int code = prints ? byte : next++;
    if (code < 0x80) {
      characters.emplace_back(1, static_cast<char>(code));
    } else {
      characters.push_back(
          {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))});
    }
  }
  return characters;
}

// A vocabulary under construction: every new token merges two earlier ones.
class Vocabulary {
 public:
  explicit Vocabulary(int64_t size) : size_(size) {
    const std::vector<std::string> bytes = ByteCharacters();
    for (size_t i = 0; i < bytes.size(); ++i) ids_[bytes[i]] = i;
    space_ = bytes[' '];
  }

  const std::string& space() const { return space_; }
  bool is_full() const { return next_id_ == size_; }
  // Returns left + right and adds it as a token unless the vocabulary is full.
  std::string Merge(const std::string& left, const std::string& right) {
    std::string joined = left + right;
    if (is_full()) return joined;
    ids_[joined] = next_id_++;
    merges_.push_back(left + " " + right);
    return joined;
  }
  const SortedJson& ids() const { return ids_; }
  const SortedJson& merges() const { return merges_; }

 private:
  int64_t size_;
  int64_t next_id_ = kEndOfText + 1;
  std::string space_;
  SortedJson ids_ = SortedJson::object();
  SortedJson merges_ = SortedJson::array();
};

// Adds tokens in the order of an encoder's merges: syllables, a space before them, words.
void AddSyllables(Vocabulary& vocabulary) {
  std::vector<std::string> syllables, spaced, words;
  for (const char consonant : std::string("bcdfghjklmnpqrstvwxyz")) {
    for (const char vowel : std::string("aeiou")) {
      syllables.push_back(vocabulary.Merge(std::string(1, consonant), std::string(1, vowel)));
    }
  }
  for (const std::string& syllable : syllables) {
    spaced.push_back(vocabulary.Merge(vocabulary.space(), syllable));
  }
  for (const std::string& first : spaced) {
    for (const std::string& second : syllables) words.push_back(vocabulary.Merge(first, second));
  }
  for (const std::string& first : syllables) {
    for (const std::string& second : syllables) vocabulary.Merge(first, second);
  }
  for (const std::string& word : words) {
    for (const std::string& third : syllables) {
      if (vocabulary.is_full()) return;
      vocabulary.Merge(word, third);
    }
  }
}

}  // namespace

const std::vector<ModelShape>& ModelShapes() {
  static const std::vector<ModelShape> kShapes = {
      {"llama-15m",
       "6 layers, width 288, vocabulary 32000: measures the server's overhead around a model",
       Llama15MConfig},
      {"llama-1b", "Llama-3.2-1B: 16 layers, width 2048, vocabulary 128256", Llama1BConfig},
      {"gemma2-2b", "Gemma 2 2B: 26 layers, width 2304, vocabulary 256000", Gemma2BConfig},
      {"llama-256k", "2 layers, width 512, vocabulary 262144, untied head", Llama256KConfig},
      {"qwen3-moe",
       "Qwen3-30B-A3B: 4 of 48 layers, 8 of 128 experts, vocabulary 32000 instead of 151936",
       Qwen3MoeCutConfig},
      {"gpt-oss",
       "gpt-oss-20b: 4 of 24 layers, 4 of 32 experts, vocabulary 32000 instead of 201088",
       GptOssCutConfig},
      {"qwen3.5-4b", "Qwen3.5-4B: 8 of 32 layers, vocabulary 32000 instead of 248320",
       Qwen35CutConfig},
      {"mamba2-2.7b", "Mamba-2 2.7B: 16 of 64 layers, vocabulary 32000", Mamba2CutConfig},
      {"gemma2-256k", "Gemma 2, 2 layers, width 512, vocabulary 262144", Gemma256KConfig},
  };
  return kShapes;
}

std::string SyllableTokenizerJson(int64_t vocab_size) {
  TANDEM_CHECK(vocab_size > kEndOfText);
  Vocabulary vocabulary(vocab_size);
  AddSyllables(vocabulary);
  TANDEM_CHECK(vocabulary.is_full());  // the maximum is 1,180,142

  const SortedJson byte_level{{"type", "ByteLevel"},
                              {"add_prefix_space", false},
                              {"trim_offsets", true},
                              {"use_regex", true}};
  const SortedJson end_of_text{
      {"id", kEndOfText}, {"content", kEndOfTextName}, {"single_word", false}, {"lstrip", false},
      {"rstrip", false},  {"normalized", false},       {"special", true}};
  return SortedJson{{"version", "1.0"},
                    {"truncation", nullptr},
                    {"padding", nullptr},
                    {"added_tokens", SortedJson::array({end_of_text})},
                    {"normalizer", nullptr},
                    {"pre_tokenizer", byte_level},
                    {"post_processor", nullptr},
                    {"decoder", byte_level},
                    {"model", SortedJson{{"type", "BPE"},
                                         {"dropout", nullptr},
                                         {"unk_token", nullptr},
                                         {"continuing_subword_prefix", ""},
                                         {"end_of_word_suffix", ""},
                                         {"fuse_unk", false},
                                         {"vocab", vocabulary.ids()},
                                         {"merges", vocabulary.merges()}}}}
      .dump();
}

void MakeModel(const std::string& name, const fs::path& dir, int64_t n_layers,
               engine::DType stored) {
  const std::vector<ModelShape>& shapes = ModelShapes();
  const auto shape = std::find_if(shapes.begin(), shapes.end(),
                                  [&](const ModelShape& each) { return each.name == name; });
  if (shape == shapes.end()) {
    throw Error(ErrorCode::kInvalidArgument, "model shape '" + name + "' does not exist");
  }
  engine::ModelConfig config = shape->config();
  if (n_layers < 0 || n_layers > config.n_layers) {
    throw Error(ErrorCode::kInvalidArgument, name + " has " + std::to_string(config.n_layers) +
                                                 " layers, not " + std::to_string(n_layers));
  }
  if (n_layers > 0) {
    config.n_layers = n_layers;
    if (!config.windowed_layers.empty()) {
      config.windowed_layers.resize(static_cast<size_t>(n_layers));
    }
    if (!config.recurrent.layers.empty()) {
      config.recurrent.layers.resize(static_cast<size_t>(n_layers));
    }
  }
  MakeModel(config, SyllableTokenizerJson(config.vocab_size), dir, stored);
}

void MakeModel(engine::ModelConfig config, const std::string& tokenizer_json, const fs::path& dir,
               engine::DType stored) {
  RandomModelSpec spec;
  spec.config = std::move(config);
  spec.stored = stored;
  spec.config.bos_token = -1;
  spec.config.eos_tokens = {kEndOfText};
  engine::PublishDirectory(dir, [&](const fs::path& temporary) {
    WriteRandomModel(spec, temporary / "weights");
    for (const fs::directory_entry& entry : fs::directory_iterator(temporary / "weights")) {
      fs::rename(entry.path(), temporary / entry.path().filename());
    }
    fs::remove(temporary / "weights");
    engine::WriteFileAtomically(temporary / "tokenizer.json", tokenizer_json);
    const SortedJson tokenizer_config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                                      {"eos_token", kEndOfTextName},
                                      {"chat_template", kChatTemplate}};
    engine::WriteFileAtomically(temporary / "tokenizer_config.json", tokenizer_config.dump(2));
  });
}

}  // namespace tandem::bench
