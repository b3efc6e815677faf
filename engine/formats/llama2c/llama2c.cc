#include "engine/formats/llama2c/llama2c.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/model_limits.h"
#include "engine/formats/stored/sentencepiece_text.h"

// Files of karpathy's llama2.c hold a header of seven sizes and the tensors in f32: all layers of
// one kind before the next kind. Version 0 has no magic, and a negative number of tokens when the
// head is stored separately. Version 1 has a magic, a byte for the separate head, and the norms
// first.
namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kLlama2cMagic = 0x616b3432;  // "ak42"
constexpr size_t kSizes = 7;
constexpr size_t kHeaderBytes0 = kSizes * sizeof(int32_t);
constexpr size_t kHeaderBytes1 = 256;
constexpr int64_t kMostSize = int64_t{1} << 30;
constexpr int32_t kMostTokenBytes = 1 << 16;  // known vocabularies have a few dozen

template <class T>
T Load(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

struct Header {
  uint32_t version = 0;
  int64_t dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len;
  bool tied = true;
  size_t bytes = kHeaderBytes0;

  int64_t head_dim() const { return dim / n_heads; }
  int64_t kv_dim() const { return head_dim() * n_kv_heads; }
};

bool HasMagic(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 * sizeof(uint32_t) && Load<uint32_t>(bytes, 0) == kLlama2cMagic;
}

// Returns nullopt when the sizes cannot belong to a model.
std::optional<Header> ReadHeader(std::span<const std::byte> bytes) {
  Header h;
  size_t at = 0;
  if (HasMagic(bytes)) {
    h.version = Load<uint32_t>(bytes, 4);
    h.bytes = kHeaderBytes1;
    at = 2 * sizeof(uint32_t);
  }
  if (bytes.size() < h.bytes) return std::nullopt;
  std::array<int64_t, kSizes> sizes;
  for (size_t i = 0; i < kSizes; ++i) sizes[i] = Load<int32_t>(bytes, at + i * sizeof(int32_t));
  if (h.version == 0) {
    h.tied = sizes[5] > 0;
    sizes[5] = std::abs(sizes[5]);
  } else {
    h.tied = Load<uint8_t>(bytes, at + kHeaderBytes0) != 0;
  }
  if (std::any_of(sizes.begin(), sizes.end(), [](int64_t n) { return n < 1 || n > kMostSize; })) {
    return std::nullopt;
  }
  h.dim = sizes[0];
  h.hidden_dim = sizes[1];
  h.n_layers = sizes[2];
  h.n_heads = sizes[3];
  h.n_kv_heads = sizes[4];
  h.vocab_size = sizes[5];
  h.seq_len = sizes[6];
  // Bounds the tensor list, which is built before any tensor is read. The smallest possible layer
  // takes fewer bytes than its names.
  if (h.n_layers > kMaxModelLayers) return std::nullopt;
  const bool whole = h.dim % h.n_heads == 0 && h.n_heads % h.n_kv_heads == 0;
  return whole && h.head_dim() % 2 == 0 ? std::optional(h) : std::nullopt;
}

// A kind of tensor. `hf` has '#' in place of the layer number.
struct TensorKind {
  std::string_view hf;
  std::vector<int64_t> shape;
  int64_t heads = 0;    // with interleaved rows; 0: none
  bool is_read = true;  // false: skipped (rope tables of version 0)
  bool by_layer = true;
};

std::vector<TensorKind> ListTensorKinds(const Header& h) {
  const TensorKind tokens{
      .hf = "model.embed_tokens.weight", .shape = {h.vocab_size, h.dim}, .by_layer = false};
  const TensorKind attn_norm{.hf = "model.layers.#.input_layernorm.weight", .shape = {h.dim}};
  const TensorKind ffn_norm{.hf = "model.layers.#.post_attention_layernorm.weight",
                            .shape = {h.dim}};
  const TensorKind final_norm{.hf = "model.norm.weight", .shape = {h.dim}, .by_layer = false};
  const TensorKind rope{
      .hf = "", .shape = {h.seq_len, h.head_dim() / 2}, .is_read = false, .by_layer = false};
  const TensorKind head{.hf = "lm_head.weight", .shape = {h.vocab_size, h.dim}, .by_layer = false};
  const std::vector<TensorKind> attention = {
      {.hf = "model.layers.#.self_attn.q_proj.weight", .shape = {h.dim, h.dim}, .heads = h.n_heads},
      {.hf = "model.layers.#.self_attn.k_proj.weight",
       .shape = {h.kv_dim(), h.dim},
       .heads = h.n_kv_heads},
      {.hf = "model.layers.#.self_attn.v_proj.weight", .shape = {h.kv_dim(), h.dim}},
      {.hf = "model.layers.#.self_attn.o_proj.weight", .shape = {h.dim, h.dim}}};
  const std::vector<TensorKind> mlp = {
      {.hf = "model.layers.#.mlp.gate_proj.weight", .shape = {h.hidden_dim, h.dim}},
      {.hf = "model.layers.#.mlp.down_proj.weight", .shape = {h.dim, h.hidden_dim}},
      {.hf = "model.layers.#.mlp.up_proj.weight", .shape = {h.hidden_dim, h.dim}}};
  std::vector<TensorKind> kinds;
  const auto add = [&](const std::vector<TensorKind>& more) {
    kinds.insert(kinds.end(), more.begin(), more.end());
  };
  if (h.version == 0) {
    add({tokens, attn_norm});
    add(attention);
    add({ffn_norm});
    add(mlp);
    add({final_norm, rope, rope});
  } else {
    add({attn_norm, ffn_norm, final_norm, tokens});
    add(attention);
    add(mlp);
  }
  if (!h.tied) add({head});
  return kinds;
}

// Returns nullopt when the size overflows.
std::optional<int64_t> BytesOf(const Header& h, const TensorKind& kind) {
  int64_t bytes = (kind.by_layer ? h.n_layers : 1) * static_cast<int64_t>(sizeof(float));
  for (const int64_t n : kind.shape) {
    if (__builtin_mul_overflow(bytes, n, &bytes)) return std::nullopt;
  }
  return bytes;
}

std::optional<int64_t> FileBytes(const Header& h) {
  auto all = static_cast<int64_t>(h.bytes);
  for (const TensorKind& kind : ListTensorKinds(h)) {
    const auto bytes = BytesOf(h, kind);
    if (!bytes || __builtin_add_overflow(all, *bytes, &all)) return std::nullopt;
  }
  return all;
}

void AddTensors(const Header& h, std::span<const std::byte> bytes, SingleFileModel& model) {
  size_t at = h.bytes;
  for (const TensorKind& kind : ListTensorKinds(h)) {
    const auto all = static_cast<size_t>(*BytesOf(h, kind));
    const int64_t copies = kind.by_layer ? h.n_layers : 1;
    for (int64_t layer = 0; kind.is_read && layer < copies; ++layer) {
      std::string name(kind.hf);
      if (kind.by_layer) name.replace(name.find('#'), 1, std::to_string(layer));
      const size_t one = all / static_cast<size_t>(copies);
      model.tensors[name] = {
          .view = {bytes.data() + at + one * static_cast<size_t>(layer), DType::kF32, kind.shape},
          .interleaved_heads = kind.heads};
    }
    at += all;
  }
}

std::string ConfigJson(const Header& h) {
  return Json{{"architectures", Json::array({"LlamaForCausalLM"})},
              {"model_type", "llama"},
              {"vocab_size", h.vocab_size},
              {"hidden_size", h.dim},
              {"intermediate_size", h.hidden_dim},
              {"num_hidden_layers", h.n_layers},
              {"num_attention_heads", h.n_heads},
              {"num_key_value_heads", h.n_kv_heads},
              {"max_position_embeddings", h.seq_len},
              // llama2.c hard-codes these two.
              {"rms_norm_eps", 1e-5},
              {"rope_theta", 10000.0},
              {"hidden_act", "silu"},
              {"tie_word_embeddings", h.tied},
              {"bos_token_id", 1},
              {"eos_token_id", 2}}
             .dump(2) +
         "\n";
}

// tokenizer.bin holds u32 longest token, then for each id a score (f32), an i32 length and the
// bytes. It is SentencePiece's vocabulary with spaces for U+2581 and newlines around <s> and </s>.
// It has no types; the types are those of Llama's vocabulary.
std::string TokenizerModel(std::span<const std::byte> bytes, const std::string& name,
                           int64_t vocab_size) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::kDataLoss, name + ": " + what);
  };
  SentencePieceText model;
  model.bos = "<s>";
  model.eos = "</s>";
  size_t at = sizeof(uint32_t);
  for (int64_t id = 0; id < vocab_size; ++id) {
    const std::string what = "token " + std::to_string(id);
    if (bytes.size() < at || bytes.size() - at < 2 * sizeof(uint32_t)) {
      fail("the file ends before " + what + " of " + std::to_string(vocab_size));
    }
    ScoredPiece piece;
    piece.score = Load<float>(bytes, at);
    const auto length = Load<int32_t>(bytes, at + sizeof(float));
    at += 2 * sizeof(uint32_t);
    if (length > kMostTokenBytes) {
      fail(what + " has " + std::to_string(length) + " bytes, more than the limit of " +
           std::to_string(kMostTokenBytes));
    }
    if (length < 0 || static_cast<size_t>(length) > bytes.size() - at) {
      fail(what + " has " + std::to_string(length) + " bytes, but " +
           std::to_string(bytes.size() - at) + " bytes of the file remain");
    }
    piece.text.assign(reinterpret_cast<const char*>(bytes.data()) + at,
                      static_cast<size_t>(length));
    at += static_cast<size_t>(length);
    if (!simdjson::validate_utf8(piece.text)) fail(what + " is not UTF-8");
    piece.text = WithMetaspaces(piece.text);
    if (id == 0) piece = {"<unk>", 0, SentencePieceType::kUnknown};
    if (id == 1) piece = {"<s>", 0, SentencePieceType::kControl};
    if (id == 2) piece = {"</s>", 0, SentencePieceType::kControl};
    if (id > 2 && id < 259 && piece.text.starts_with("<0x")) piece.type = SentencePieceType::kByte;
    model.pieces.push_back(std::move(piece));
  }
  if (at != bytes.size())
    fail("the file has extra bytes after its " + std::to_string(vocab_size) + " tokens");
  return WriteSentencePiece(model);
}

}  // namespace

bool LooksLikeLlama2c(std::span<const std::byte> bytes) {
  if (HasMagic(bytes)) return true;
  const auto header = ReadHeader(bytes);
  return header && FileBytes(*header) == static_cast<int64_t>(bytes.size());
}

std::filesystem::path FindLlama2cVocabulary(const std::filesystem::path& model,
                                            std::span<const std::byte> bytes) {
  const auto header = ReadHeader(bytes);
  if (!header) return {};
  const std::filesystem::path dir = model.parent_path();
  for (const std::string& name :
       {"tok" + std::to_string(header->vocab_size) + ".bin", std::string("tokenizer.bin")}) {
    std::error_code absent;
    if (std::filesystem::is_regular_file(dir / name, absent)) return dir / name;
  }
  return {};
}

SingleFileModel ReadLlama2cModel(std::span<const std::byte> bytes, const std::string& name,
                                 std::shared_ptr<const MappedFile> vocabulary) {
  if (const uint32_t version = HasMagic(bytes) ? Load<uint32_t>(bytes, 4) : 0; version > 1) {
    throw Error(ErrorCode::kUnsupported,
                name + ": llama2.c format version " + std::to_string(version) +
                    " is not supported; export the model with export.py --version 1");
  }
  const auto header = ReadHeader(bytes);
  if (!header) {
    throw Error(ErrorCode::kDataLoss,
                name + ": the header's sizes are not those of a llama2.c model");
  }
  const auto expected = FileBytes(*header);
  if (expected != static_cast<int64_t>(bytes.size())) {
    throw Error(ErrorCode::kDataLoss, name + ": the file has " + std::to_string(bytes.size()) +
                                          " bytes, but the header's sizes need " +
                                          (expected ? std::to_string(*expected)
                                                    : std::string("more than a file can hold")));
  }
  SingleFileModel model;
  AddTensors(*header, bytes, model);
  model.read_text = [header = *header, vocabulary = std::move(vocabulary)](
                        std::string_view text) -> std::optional<std::string> {
    if (text == "config.json") return ConfigJson(header);
    if (text == "tokenizer.model" && vocabulary != nullptr) {
      return TokenizerModel(vocabulary->bytes(), vocabulary->path().string(), header.vocab_size);
    }
    return std::nullopt;
  };
  return model;
}

}  // namespace tandem::engine
