#include "tests/support/gguf_writer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string_view>

#include "engine/base/check.h"
#include "engine/formats/model_dir.h"
#include "engine/tensor/bfloat16.h"

namespace tandem::tests {
namespace {

using engine::Encoding;
using Json = nlohmann::ordered_json;

template <class T>
std::string Raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

template <class T>
std::string RawArray(uint32_t item, const std::vector<T>& values) {
  std::string bytes = U32(item) + U64(values.size());
  for (const T& value : values) bytes += Raw(value);
  return bytes;
}

std::string FloatBytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

struct BlockType {
  Encoding encoding;
  uint32_t number;              // of the type in the format
  std::vector<int64_t> halves;  // offsets of the f16 numbers in a block
};
const BlockType& TypeOf(Encoding encoding) {
  static const std::vector<BlockType> types = {
      {Encoding::kQ4_0, 2, {0}},     {Encoding::kQ4_1, 3, {0, 2}},  {Encoding::kQ5_0, 6, {0}},
      {Encoding::kQ5_1, 7, {0, 2}},  {Encoding::kQ8_0, 8, {0}},     {Encoding::kQ2_K, 10, {80, 82}},
      {Encoding::kQ3_K, 11, {108}},  {Encoding::kQ4_K, 12, {0, 2}}, {Encoding::kQ5_K, 13, {0, 2}},
      {Encoding::kQ6_K, 14, {208}},  {Encoding::kIQ2_XXS, 16, {0}}, {Encoding::kIQ2_XS, 17, {0}},
      {Encoding::kIQ3_XXS, 18, {0}}, {Encoding::kIQ1_S, 19, {0}},   {Encoding::kIQ4_NL, 20, {0}},
      {Encoding::kIQ3_S, 21, {0}},   {Encoding::kIQ2_S, 22, {0}},   {Encoding::kIQ4_XS, 23, {0}},
      {Encoding::kIQ1_M, 29, {54}},  // the upper nibbles of four words
      {Encoding::kTQ1_0, 34, {52}},  {Encoding::kTQ2_0, 35, {64}},  {Encoding::kMXFP4, 39, {}}};
  const auto found = std::find_if(types.begin(), types.end(),
                                  [&](const BlockType& type) { return type.encoding == encoding; });
  TANDEM_CHECK(found != types.end());
  return *found;
}

}  // namespace

std::string U32(uint32_t value) { return Raw(value); }
std::string U64(uint64_t value) { return Raw(value); }
std::string GgufString(std::string_view text) { return U64(text.size()) + std::string(text); }

void GgufWriter::AddRaw(std::string_view key, uint32_t type, std::string_view bytes) {
  keys_ += GgufString(key) + U32(type) + std::string(bytes);
  ++n_keys_;
}

void GgufWriter::Add(std::string_view key, std::string_view text) {
  AddRaw(key, 8, GgufString(text));
}
void GgufWriter::Add(std::string_view key, uint32_t value) { AddRaw(key, 4, Raw(value)); }
void GgufWriter::Add(std::string_view key, float value) { AddRaw(key, 6, Raw(value)); }
void GgufWriter::Add(std::string_view key, bool value) {
  AddRaw(key, 7, std::string(1, value ? '\1' : '\0'));
}
void GgufWriter::Add(std::string_view key, const std::vector<std::string>& values) {
  std::string bytes = U32(8) + U64(values.size());
  for (const std::string& value : values) bytes += GgufString(value);
  AddRaw(key, 9, bytes);
}
void GgufWriter::Add(std::string_view key, const std::vector<float>& values) {
  AddRaw(key, 9, RawArray(6, values));
}
void GgufWriter::Add(std::string_view key, const std::vector<int32_t>& values) {
  AddRaw(key, 9, RawArray(5, values));
}

void GgufWriter::AddTensorRaw(std::string_view name, uint32_t type,
                              const std::vector<uint64_t>& file_shape, uint64_t offset,
                              const std::string& bytes) {
  tensors_ += GgufString(name) + U32(static_cast<uint32_t>(file_shape.size()));
  for (const uint64_t size : file_shape) tensors_ += U64(size);
  tensors_ += U32(type) + U64(offset);
  ++n_tensors_;
  data_ += bytes;
  data_.resize(RoundUp<size_t>(data_.size(), alignment), '\0');
}

void GgufWriter::AddTensor(std::string_view name, uint32_t type, const std::vector<int64_t>& shape,
                           const std::string& bytes) {
  const std::vector<uint64_t> file_shape(shape.rbegin(), shape.rend());
  AddTensorRaw(name, type, file_shape, data_.size(), bytes);
}

std::string GgufWriter::Bytes() const {
  std::string bytes = "GGUF" + U32(version) + U64(n_tensors_) + U64(n_keys_) + keys_ + tensors_;
  if (n_tensors_ > 0) bytes.resize(RoundUp<size_t>(bytes.size(), alignment), '\0');
  return bytes + data_;
}

void GgufWriter::Write(const std::filesystem::path& path) const {
  std::ofstream(path, std::ios::binary) << Bytes();
}

uint32_t GgufTypeOf(Encoding encoding) {
  return encoding == Encoding::kPlain ? kGgufF32 : TypeOf(encoding).number;
}

std::string RandomBlocks(Encoding encoding, int64_t n_blocks) {
  const int64_t block = engine::EncodedBlockBytes(encoding);
  const std::vector<int64_t>& halves = TypeOf(encoding).halves;
  uint64_t state = 1;
  std::string bytes;
  for (int64_t i = 0; i < n_blocks * block; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    auto byte = static_cast<uint8_t>(state >> 56);
    for (const int64_t half : halves) {
      if (i % block == half + 1) byte &= 0xbb;  // below 2 in magnitude
    }
    // The exponent of the scale.
    if (encoding == Encoding::kMXFP4 && i % block == 0) byte = static_cast<uint8_t>(124 + byte % 4);
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

std::string Quantize(Encoding encoding, std::span<const float> values) {
  TANDEM_CHECK(encoding == Encoding::kQ8_0 || encoding == Encoding::kQ4_0);
  std::string bytes;
  for (size_t first = 0; first < values.size(); first += 32) {
    const auto block = values.subspan(first, 32);
    float extreme = 0;
    for (const float v : block) {
      if (std::abs(v) > std::abs(extreme)) extreme = v;
    }
    const bool q8 = encoding == Encoding::kQ8_0;
    const float scale = q8 ? std::abs(extreme) / 127 : extreme / -8;
    const float inverse = scale == 0 ? 0 : 1 / scale;
    bytes += Raw(engine::FloatToF16(scale));
    const auto nibble = [&](size_t i) {
      return static_cast<int>(std::clamp(std::floor(block[i] * inverse + 8.5f), 0.0f, 15.0f));
    };
    for (size_t i = 0; i < (q8 ? 32u : 16u); ++i) {
      bytes.push_back(static_cast<char>(q8 ? static_cast<int>(std::round(block[i] * inverse))
                                           : nibble(i) | nibble(i + 16) << 4));
    }
  }
  return bytes;
}

namespace {

// Orders rows of q and k as Llama's converter does: rotated pairs side by side. An independent
// inverse of the tested code.
std::vector<float> InterleaveHeads(const std::vector<float>& w, int64_t rows, int64_t heads) {
  std::vector<float> out(w.size());
  const auto columns = static_cast<int64_t>(w.size()) / rows;
  const int64_t half = rows / heads / 2;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t part = 0; part < 2; ++part) {
      for (int64_t i = 0; i < half; ++i) {
        const int64_t from = (head * 2 + part) * half + i;
        const int64_t to = head * 2 * half + 2 * i + part;
        std::copy_n(w.begin() + from * columns, columns, out.begin() + to * columns);
      }
    }
  }
  return out;
}

std::vector<float> Transpose(const std::vector<float>& w, int64_t rows, int64_t columns) {
  std::vector<float> out(w.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      out[static_cast<size_t>(c * rows + r)] = w[static_cast<size_t>(r * columns + c)];
    }
  }
  return out;
}

void Replace(std::string& text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  if (at != std::string::npos) text.replace(at, from.size(), to);
}

std::string GgufName(std::string name, const std::string& architecture) {
  const bool four_norms = architecture == "gemma2" || architecture == "gemma3";
  if (architecture == "gpt2") {
    Replace(name, "wte.", "token_embd.");
    Replace(name, "wpe.", "position_embd.");
    Replace(name, "ln_f.", "output_norm.");
    Replace(name, "h.", name.starts_with("h.") ? "blk." : "h.");
    Replace(name, "ln_1.", "attn_norm.");
    Replace(name, "ln_2.", "ffn_norm.");
    Replace(name, "attn.c_attn.", "attn_qkv.");
    Replace(name, "attn.c_proj.", "attn_output.");
    Replace(name, "mlp.c_fc.", "ffn_up.");
    Replace(name, "mlp.c_proj.", "ffn_down.");
    return name;
  }
  Replace(name, "model.embed_tokens.", "token_embd.");
  Replace(name, "model.norm.", "output_norm.");
  Replace(name, "lm_head.", "output.");
  Replace(name, "model.layers.", "blk.");
  Replace(name, "input_layernorm.", "attn_norm.");
  Replace(name, "post_attention_layernorm.", four_norms ? "post_attention_norm." : "ffn_norm.");
  Replace(name, "pre_feedforward_layernorm.", "ffn_norm.");
  Replace(name, "post_feedforward_layernorm.", "post_ffw_norm.");
  for (const char* part : {"q", "k", "v"}) {
    Replace(name, std::string("self_attn.") + part + "_proj.", std::string("attn_") + part + ".");
    Replace(name, std::string("self_attn.") + part + "_norm.",
            std::string("attn_") + part + "_norm.");
  }
  Replace(name, "self_attn.o_proj.", "attn_output.");
  Replace(name, "mlp.gate_proj.", "ffn_gate.");
  Replace(name, "mlp.up_proj.", "ffn_up.");
  Replace(name, "mlp.down_proj.", "ffn_down.");
  return name;
}

uint32_t IntOf(const Json& config, const char* field, uint32_t fallback) {
  const auto found = config.find(field);
  return found == config.end() || found->is_null() ? fallback : found->get<uint32_t>();
}

void AddConfig(const Json& config, const std::string& a, GgufWriter& writer) {
  writer.Add("general.architecture", a);
  if (a == "gpt2") {
    writer.Add(a + ".embedding_length", IntOf(config, "n_embd", 0));
    writer.Add(a + ".feed_forward_length",
               IntOf(config, "n_inner", 4 * IntOf(config, "n_embd", 0)));
    writer.Add(a + ".block_count", IntOf(config, "n_layer", 0));
    writer.Add(a + ".attention.head_count", IntOf(config, "n_head", 0));
    writer.Add(a + ".context_length", IntOf(config, "n_positions", 0));
    writer.Add(a + ".attention.layer_norm_epsilon", config["layer_norm_epsilon"].get<float>());
    return;
  }
  const uint32_t heads = IntOf(config, "num_attention_heads", 0);
  const uint32_t hidden = IntOf(config, "hidden_size", 0);
  writer.Add(a + ".embedding_length", hidden);
  writer.Add(a + ".feed_forward_length", IntOf(config, "intermediate_size", 0));
  writer.Add(a + ".block_count", IntOf(config, "num_hidden_layers", 0));
  writer.Add(a + ".attention.head_count", heads);
  writer.Add(a + ".attention.head_count_kv", IntOf(config, "num_key_value_heads", heads));
  writer.Add(a + ".attention.key_length", IntOf(config, "head_dim", hidden / heads));
  writer.Add(a + ".context_length", IntOf(config, "max_position_embeddings", 0));
  writer.Add(a + ".attention.layer_norm_rms_epsilon", config["rms_norm_eps"].get<float>());
  writer.Add(a + ".rope.freq_base", config["rope_theta"].get<float>());
  if (a == "llama" || a == "gemma2" || a == "gemma3") {
    if (const uint32_t window = IntOf(config, "sliding_window", 0); window > 0) {
      writer.Add(a + ".attention.sliding_window", window);
    }
  }
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (config.contains(cap) && !config[cap].is_null()) {
      writer.Add(a + "." + cap, config[cap].get<float>());
    }
  }
  if (config.contains("query_pre_attn_scalar")) {
    writer.Add(a + ".attention.scale", 1 / std::sqrt(config["query_pre_attn_scalar"].get<float>()));
  }
}

// The converter's form of `rope_scaling`: keys, or for Llama 3 a tensor of divisors.
void AddRopeScaling(const Json& config, const std::string& a, GgufWriter& writer) {
  const auto found = config.find("rope_scaling");
  if (found == config.end() || found->is_null()) return;
  const Json& scaling = *found;
  if (scaling["rope_type"] == "linear") {
    writer.Add(a + ".rope.scaling.type", "linear");
    writer.Add(a + ".rope.scaling.factor", scaling["factor"].get<float>());
    return;
  }
  TANDEM_CHECK(scaling["rope_type"] == "llama3");
  const double factor = scaling["factor"], low = scaling["low_freq_factor"],
               high = scaling["high_freq_factor"],
               length = scaling["original_max_position_embeddings"];
  const double theta = config["rope_theta"], dim = config["head_dim"];
  std::vector<float> divisors;
  for (double i = 0; i < dim / 2; ++i) {
    const double turns = length * std::pow(theta, -2 * i / dim) / (2 * std::numbers::pi);
    const double smooth = (turns - low) / (high - low);
    divisors.push_back(static_cast<float>(turns > high  ? 1
                                          : turns < low ? factor
                                                        : 1 / ((1 - smooth) / factor + smooth)));
  }
  writer.AddTensor("rope_freqs.weight", kGgufF32, {static_cast<int64_t>(divisors.size())},
                   FloatBytes(divisors));
}

void AddVocabulary(uint32_t size, GgufWriter& writer) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {2, 3, 3};
  for (int b = 0; b < 256 && size >= 264; ++b) {
    constexpr std::string_view kHex = "0123456789ABCDEF";
    tokens.push_back(std::string("<0x") + kHex[static_cast<size_t>(b / 16)] +
                     kHex[static_cast<size_t>(b % 16)] + ">");
    types.push_back(6);
  }
  for (const char* piece : {"\xE2\x96\x81", "a", "b",
                            "\xE2\x96\x81"
                            "a",
                            "ab"}) {
    tokens.emplace_back(piece);
    types.push_back(1);
  }
  while (tokens.size() < size) {
    tokens.push_back("[PAD" + std::to_string(tokens.size()) + "]");
    types.push_back(5);
  }
  std::vector<float> scores;
  for (size_t i = 0; i < tokens.size(); ++i) scores.push_back(-static_cast<float>(i));
  writer.Add("tokenizer.ggml.model", "llama");
  writer.Add("tokenizer.ggml.tokens", tokens);
  writer.Add("tokenizer.ggml.scores", scores);
  writer.Add("tokenizer.ggml.token_type", types);
  writer.Add("tokenizer.chat_template", "{% for m in messages %}{{ m['content'] }}{% endfor %}");
}

}  // namespace

bool CanConvertToGguf(const std::filesystem::path& model_dir) {
  constexpr auto kTypes = std::to_array<std::string_view>(
      {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt2"});
  const Json config = Json::parse(*engine::ModelDir::Open(model_dir).ReadText("config.json"));
  return std::find(kTypes.begin(), kTypes.end(), config.value("model_type", "")) != kTypes.end();
}

GgufWriter ConvertToGguf(const std::filesystem::path& model_dir, const GgufModelOptions& options) {
  const engine::ModelDir dir = engine::ModelDir::Open(model_dir);
  const Json config = Json::parse(*dir.ReadText("config.json"));
  std::string a = config["model_type"];
  if (a == "gemma3_text") a = "gemma3";
  if (a == "mistral") a = "llama";
  GgufWriter writer;
  AddConfig(config, a, writer);
  if (config.contains("bos_token_id")) {
    writer.Add("tokenizer.ggml.bos_token_id", IntOf(config, "bos_token_id", 0));
  }
  const Json eos = config["eos_token_id"];
  writer.Add("tokenizer.ggml.eos_token_id", (eos.is_array() ? eos[0] : eos).get<uint32_t>());
  if (options.with_vocabulary) AddVocabulary(config["vocab_size"], writer);
  AddRopeScaling(config, a, writer);

  for (const std::string& name : dir.tensor_names()) {
    if (name.ends_with(".attn.bias") || name.ends_with("masked_bias")) continue;
    std::vector<float> values = engine::DecodeTensor(*dir.FindStored(name));
    std::vector<int64_t> shape = dir.FindStored(name)->view.shape;
    if (a == "llama" && name.find("q_proj") != std::string::npos) {
      values = InterleaveHeads(values, shape[0], config["num_attention_heads"]);
    }
    if (a == "llama" && name.find("k_proj") != std::string::npos) {
      values = InterleaveHeads(values, shape[0], config["num_key_value_heads"]);
    }
    if (a.starts_with("gemma") && name.ends_with("norm.weight")) {
      for (float& value : values) value += 1;
    }
    if (name.find("c_") != std::string::npos && shape.size() == 2) {
      values = Transpose(values, shape[0], shape[1]);
      std::swap(shape[0], shape[1]);
    }
    const bool in_blocks = options.matrices != Encoding::kPlain && shape.size() == 2 &&
                           shape[1] % engine::BlockElements(options.matrices) == 0;
    writer.AddTensor(GgufName(name, a), in_blocks ? GgufTypeOf(options.matrices) : kGgufF32, shape,
                     in_blocks ? Quantize(options.matrices, values) : FloatBytes(values));
  }
  return writer;
}

}  // namespace tandem::tests
