#include "bench/models/random_model.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/base/check.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/io/atomic_write.h"
#include "engine/model/families/family.h"
#include "engine/tensor/bfloat16.h"

namespace tandem::bench {
namespace {

using engine::DType;
using engine::ModelConfig;
using engine::WeightKind;
using engine::WeightSpec;
using Json = nlohmann::ordered_json;

constexpr int64_t kSharedPoolThresholdBytes = 512LL << 20;
constexpr int64_t kPoolSlackElements = 1 << 20;

// splitmix64 (Steele, Lea, Flood 2014). The sum of four uniform 16-bit numbers is close enough to
// normal and needs no library function that could differ between machines.
class NormalSource {
 public:
  explicit NormalSource(uint64_t seed) : state_(seed) {}
  float Next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const auto sum = static_cast<int64_t>((z & 0xffff) + ((z >> 16) & 0xffff) +
                                          ((z >> 32) & 0xffff) + (z >> 48));
    return static_cast<float>(sum - 2 * 0xffff) * (1.7320508f / 65536);  // variance 1
  }

 private:
  uint64_t state_;
};

void Fill(NormalSource& random, float mean, float deviation, DType dtype, int64_t elements,
          std::byte* out) {
  for (int64_t i = 0; i < elements; ++i) {
    const float value = mean + deviation * random.Next();
    if (dtype == DType::kF32) {
      reinterpret_cast<float*>(out)[i] = value;
    } else {
      reinterpret_cast<engine::Bf16*>(out)[i] = engine::FloatToBf16(value);
    }
  }
}

// The tensors of a model and their bytes.
struct RandomTensors {
  AlignedBuffer bytes;
  std::vector<engine::NamedTensor> tensors;
};

RandomTensors MakeTensors(const RandomModelSpec& spec, const std::vector<WeightSpec>& weights) {
  const auto element_bytes = static_cast<int64_t>(engine::DTypeBytes(spec.stored));
  int64_t total = 0, largest = 0;
  for (const WeightSpec& weight : weights) {
    const int64_t elements = engine::ElementCount(weight.source_shape);
    total += RoundUp<int64_t>(elements, 32);
    largest = std::max(largest, elements);
  }
  const bool shared = total * element_bytes > kSharedPoolThresholdBytes;
  const int64_t pool = shared ? largest + kPoolSlackElements : 0;

  NormalSource random(spec.seed);
  RandomTensors made;
  int64_t vectors = 0;
  for (const WeightSpec& weight : weights) {
    if (weight.kind == WeightKind::kVector) vectors += RoundUp<int64_t>(weight.n, 32);
  }
  made.bytes =
      AlignedBuffer(static_cast<size_t>((shared ? pool + vectors : total) * element_bytes));
  if (shared) Fill(random, 0, 0.02f, spec.stored, pool, made.bytes.data());

  int64_t next = pool;
  for (size_t i = 0; i < weights.size(); ++i) {
    const WeightSpec& weight = weights[i];
    const int64_t elements = engine::ElementCount(weight.source_shape);
    int64_t first = next;
    if (weight.kind == WeightKind::kVector) {
      const float mean = weight.name.ends_with("bias") ? 0.0f : 1.0f - weight.offset;
      Fill(random, mean, 0.1f, spec.stored, elements, made.bytes.data() + next * element_bytes);
      next += RoundUp<int64_t>(elements, 32);
    } else if (shared) {
      first = static_cast<int64_t>(i) * 997 * 32 % kPoolSlackElements;
    } else {
      // Wide enough that logits differ clearly and no layer vanishes.
      const float deviation = 1.5f / std::sqrt(static_cast<float>(weight.k));
      Fill(random, 0, deviation, spec.stored, elements, made.bytes.data() + next * element_bytes);
      next += RoundUp<int64_t>(elements, 32);
    }
    made.tensors.push_back(
        {weight.name,
         {made.bytes.data() + first * element_bytes, spec.stored, weight.source_shape}});
  }
  return made;
}

// GPT-2's mapping of bytes to printable characters: printable Latin-1 maps to the same code point,
// all other bytes to U+0100 and up, in order.
std::string ByteLevelCharacter(int byte) {
  const auto prints = [](int b) {
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
  };
  int code = byte;
  if (!prints(byte)) {
    code = 0x100;
    for (int b = 0; b < byte; ++b) code += prints(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

Json TokenizerJson() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[ByteLevelCharacter(byte)] = byte;
  const Json byte_level{{"type", "ByteLevel"},
                        {"add_prefix_space", false},
                        {"trim_offsets", true},
                        {"use_regex", true}};
  const Json end_of_text{
      {"id", 256},       {"content", "<|endoftext|>"}, {"single_word", false}, {"lstrip", false},
      {"rstrip", false}, {"normalized", false},        {"special", true}};
  return Json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", Json::array({end_of_text})},
              {"normalizer", nullptr},
              {"pre_tokenizer", byte_level},
              {"post_processor", nullptr},
              {"decoder", byte_level},
              {"model", Json{{"type", "BPE"},
                             {"dropout", nullptr},
                             {"unk_token", nullptr},
                             {"continuing_subword_prefix", ""},
                             {"end_of_word_suffix", ""},
                             {"fuse_unk", false},
                             {"vocab", vocabulary},
                             {"merges", Json::array()}}}};
}

constexpr const char* kChatTemplate =
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

}  // namespace

ModelConfig TinyModelConfig(std::string_view family) {
  ModelConfig c;
  c.family = family;
  c.n_layers = 2;
  c.hidden_dim = 48;
  c.ffn_dim = 80;
  c.vocab_size = 272;
  c.max_context_len = 256;
  c.attention = {.n_heads = 4, .n_kv_heads = 4, .head_dim = 12};
  c.attention.scale = static_cast<float>(1 / std::sqrt(12.0));
  c.eos_tokens = {256};
  engine::FindFamilyByName(family).shape_tiny(c);
  return c;
}

ModelConfig TinyLlamaConfig() { return TinyModelConfig("llama"); }
ModelConfig TinyMiniGptConfig() { return TinyModelConfig("minigpt"); }

ModelConfig Gemma2BConfig() {
  ModelConfig c;
  c.family = "gemma2";
  c.n_layers = 26;
  c.hidden_dim = 2304;
  c.ffn_dim = 9216;
  c.vocab_size = 256000;
  c.max_context_len = 8192;
  c.norm_eps = 1e-6f;
  c.attention = {.n_heads = 8, .n_kv_heads = 4, .head_dim = 256, .scale = 0.0625f};
  c.attention.window = 4096;
  c.attention.soft_cap = 50;
  for (int64_t i = 0; i < c.n_layers; ++i) c.windowed_layers.push_back(i % 2 == 0);
  c.query_scalar = 256;
  c.logit_cap = 30;
  c.activation = engine::Activation::kGeluTanh;
  c.tied_embeddings = true;
  c.bos_token = 2;
  c.eos_tokens = {1};
  return c;
}

ModelConfig Llama1BConfig() {
  ModelConfig c;
  c.family = "llama";
  c.n_layers = 16;
  c.hidden_dim = 2048;
  c.ffn_dim = 8192;
  c.vocab_size = 128256;
  c.max_context_len = 131072;
  c.attention = {.n_heads = 32, .n_kv_heads = 8, .head_dim = 64, .scale = 0.125f};
  c.rope_theta = 500000;
  c.rope_scaling = {
      .kind = engine::RopeKind::kLlama3, .factor = 32, .original_max_positions = 8192};
  c.tied_embeddings = true;
  c.bos_token = 128000;
  c.eos_tokens = {128001};
  return c;
}

ModelConfig Qwen3MoeConfig(int64_t n_layers) {
  ModelConfig c;
  c.family = "qwen3_moe";
  c.n_layers = n_layers;
  c.hidden_dim = 2048;
  c.ffn_dim = 6144;
  c.vocab_size = 151936;
  c.max_context_len = 40960;
  c.norm_eps = 1e-6f;
  c.attention = {.n_heads = 32, .n_kv_heads = 4, .head_dim = 128};
  c.attention.scale = static_cast<float>(1 / std::sqrt(128.0));
  c.rope_theta = 1e6;
  c.experts.router = {.n_experts = 128, .top_k = 8, .normalise = true};
  c.experts.ffn_dim = 768;
  c.bos_token = 151643;
  c.eos_tokens = {151645};
  return c;
}

void WriteRandomModel(const RandomModelSpec& spec, const std::filesystem::path& dir) {
  TANDEM_CHECK(spec.stored == DType::kF32 || spec.stored == DType::kBF16);
  TANDEM_CHECK(!spec.with_tokenizer || spec.config.vocab_size >= 257);
  const engine::FamilySpec& family = engine::FindFamilyByName(spec.config.family);
  const RandomTensors made = MakeTensors(spec, family.list_weights(spec.config));
  Json config = family.write_config(spec.config);
  config["torch_dtype"] = spec.stored == DType::kF32 ? "float32" : "bfloat16";

  engine::PublishDirectory(dir, [&](const std::filesystem::path& temporary) {
    engine::WriteSafetensors(temporary / "model.safetensors", made.tensors, {{"format", "pt"}});
    engine::WriteFileAtomically(temporary / "config.json", config.dump(2));
    if (!spec.with_tokenizer) return;
    engine::WriteFileAtomically(temporary / "tokenizer.json", TokenizerJson().dump());
    const Json tokenizer_config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                                {"eos_token", "<|endoftext|>"},
                                {"chat_template", kChatTemplate}};
    engine::WriteFileAtomically(temporary / "tokenizer_config.json", tokenizer_config.dump(2));
  });
}

}  // namespace tandem::bench
