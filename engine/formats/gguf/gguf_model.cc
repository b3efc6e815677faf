#include "engine/formats/gguf/gguf_model.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/formats/gguf/gguf_names.h"
#include "engine/formats/gguf/gguf_words.h"

// Maps a file's keys to config.json by its family, and tensors to the layout that families expect.
namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kRopeDivisors = "rope_freqs.weight";

// The keys of one architecture in a file.
class Keys final : public GgufMetadata {
 public:
  Keys(const GgufFile& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + ".") {}

  const std::string& source() const override { return file_.name(); }
  std::string FullName(std::string_view key) const override { return prefix_ + std::string(key); }
  std::optional<double> Number(std::string_view key) const override {
    return file_.Number(FullName(key));
  }
  std::optional<std::string_view> String(std::string_view key) const override {
    return file_.String(FullName(key));
  }
  std::optional<std::vector<int64_t>> Ints(std::string_view key) const override {
    const std::string name = FullName(key);
    return file_.IsArray(name) ? file_.Ints(name) : std::nullopt;
  }
  bool HasTensor(std::string_view name) const override { return file_.Find(name) != nullptr; }
  std::optional<int64_t> Int(std::string_view key) const override {
    const std::string name = FullName(key);
    if (!file_.IsArray(name)) return file_.Int(name);
    const std::vector<int64_t> numbers = file_.Ints(name).value_or(std::vector<int64_t>());
    if (numbers.empty()) file_.Broken(name, "is empty");
    if (std::any_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n != numbers[0]; })) {
      file_.Unsupported(name, "differs between layers, which is not supported");
    }
    return numbers[0];
  }
  std::optional<std::vector<float>> RopeDivisors(int64_t head_dim) const override {
    const GgufFile::Tensor* tensor = file_.Find(kRopeDivisors);
    if (tensor == nullptr) return std::nullopt;
    const auto fail = [&](ErrorCode code, const std::string& what) {
      throw Error(code, file_.name() + ": tensor " + Quoted(tensor->name) + " " + what);
    };
    // Block formats need rows of a matrix.
    if (tensor->encoding != Encoding::kPlain) {
      fail(ErrorCode::kUnsupported, "is of type " + std::string(EncodingName(tensor->encoding)) +
                                        "; rope frequency divisors must be floating point");
    }
    const int64_t count = ElementCount(tensor->shape);
    if (count != head_dim / 2) {
      fail(ErrorCode::kDataLoss, "has " + std::to_string(count) + " numbers, but a head of size " +
                                     std::to_string(head_dim) + " has " +
                                     std::to_string(head_dim / 2) + " frequencies");
    }
    return DecodeTensor({.view = {tensor->data.data(), tensor->dtype, tensor->shape}});
  }
  [[noreturn]] void Unsupported(std::string_view key, const std::string& what) const override {
    file_.Unsupported(FullName(key), what);
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

constexpr std::string_view kArchitectureKey = "general.architecture";

std::string_view ArchitectureOf(const GgufFile& file) {
  return file.String(kArchitectureKey).value_or("");
}

// The family of a file whose architecture several families may share; null: none.
const FamilySpec* FindFamilyOf(const GgufFile& file) {
  const std::string_view architecture = ArchitectureOf(file);
  const Keys keys(file, architecture);
  const FamilySpec* found = nullptr;
  for (const FamilySpec* family : Families()) {
    if (family->gguf == nullptr || family->gguf->name != architecture) continue;
    if (family->gguf->owns == nullptr) {
      if (found == nullptr) found = family;
    } else if (family->gguf->owns(keys)) {
      return family;
    }
  }
  return found;
}

bool HasExperts(const Keys& keys) { return keys.Int("expert_count").value_or(0) > 0; }

int64_t VocabularySize(const GgufFile& file) {
  const GgufFile::Tensor* embedding = file.Find("token_embd.weight");
  if (embedding == nullptr) {
    throw Error(ErrorCode::kDataLoss, file.name() + ": tensor 'token_embd.weight' is missing");
  }
  return embedding->shape.front();
}

// A token id that a key names. Returns nullopt for an id beyond the vocabulary, which some files
// write for "none".
std::optional<int64_t> TokenOf(const GgufFile& file, std::string_view key, int64_t vocab_size) {
  const auto id = file.Int(key);
  return id && *id >= 0 && *id < vocab_size ? id : std::nullopt;
}

// ---- Tensors

int64_t HeadsOf(const GgufFile& file, const GgufFile::Tensor& tensor, const Keys& keys,
                std::string_view key) {
  const int64_t heads = keys.Int(key).value_or(keys.RequiredInt("attention.head_count"));
  if (heads < 1 || tensor.shape.front() % heads != 0 || tensor.shape.front() / heads % 2 != 0) {
    throw Error(ErrorCode::kDataLoss, file.name() + ": tensor " + Quoted(tensor.name) + " has " +
                                          std::to_string(tensor.shape.front()) +
                                          " rows, which do not form " + std::to_string(heads) +
                                          " heads of even size");
  }
  return heads;
}

StoredTensor Store(const GgufFile& file, const GgufFile::Tensor& tensor, GgufChange change,
                   const Keys& keys) {
  StoredTensor stored{.view = {tensor.data.data(), tensor.dtype, tensor.shape},
                      .encoding = tensor.encoding};
  if (tensor.encoding != Encoding::kPlain && tensor.shape.size() != 2) {
    throw Error(ErrorCode::kUnsupported, file.name() + ": tensor " + Quoted(tensor.name) +
                                             " has type " +
                                             std::string(EncodingName(tensor.encoding)) +
                                             " but is not a matrix, which is not supported");
  }
  switch (change) {
    case GgufChange::kNone:
      break;
    case GgufChange::kQueryPairs:
      stored.interleaved_heads = HeadsOf(file, tensor, keys, "attention.head_count");
      break;
    case GgufChange::kKeyPairs:
      stored.interleaved_heads = HeadsOf(file, tensor, keys, "attention.head_count_kv");
      break;
    case GgufChange::kPlus1:
      stored.added = 1;
      break;
    case GgufChange::kTransposed:
      if (tensor.shape.size() != 2) break;  // a bias
      std::reverse(stored.view.shape.begin(), stored.view.shape.end());
      stored.transposed = true;
      break;
  }
  return stored;
}

}  // namespace

std::string GgufConfigJson(const GgufFile& file) {
  const FamilySpec* family = FindFamilyOf(file);
  if (family == nullptr) {
    file.Unsupported(kArchitectureKey, "is " + Quoted(ArchitectureOf(file)) + "; supported are " +
                                           GgufArchitectureNames());
  }
  Json json = {{"architectures", Json::array({family->architectures[0]})},
               {"model_type", family->architectures[1]}};
  const int64_t vocab_size = VocabularySize(file);
  json["vocab_size"] = vocab_size;
  family->gguf->read_config(Keys(file, family->gguf->name), json);
  json["tie_word_embeddings"] = file.Find("output.weight") == nullptr;
  const auto token = [&](std::string_view key) {
    const auto id = TokenOf(file, key, vocab_size);
    return id ? Json(*id) : Json(nullptr);
  };
  json["bos_token_id"] = token("tokenizer.ggml.bos_token_id");
  json["eos_token_id"] = token("tokenizer.ggml.eos_token_id");
  return json.dump(2) + "\n";
}

namespace {

// `pooling_type` in the words of sentence-transformers; nullopt for a file without pooling.
std::optional<std::string> GgufPoolingJson(const GgufFile& file) {
  static constexpr const char* kModes[] = {"", "mean", "cls", "lasttoken", "rank"};
  const std::string key = std::string(ArchitectureOf(file)) + ".pooling_type";
  const int64_t type = file.Int(key).value_or(0);
  if (type < 0 || type >= std::ssize(kModes)) {
    file.Broken(key, "must be 0 to " + std::to_string(std::ssize(kModes) - 1) + ", got " +
                         std::to_string(type));
  }
  if (type == 0) return std::nullopt;
  return Json{{"pooling_mode", kModes[type]}}.dump(2) + "\n";
}

}  // namespace

SingleFileModel ReadGgufModel(GgufFile gguf) {
  const auto file = std::make_shared<const GgufFile>(std::move(gguf));
  SingleFileModel model;
  const FamilySpec* family = FindGgufFamily(ArchitectureOf(*file));
  const Keys keys(*file, family == nullptr ? "" : family->gguf->name);
  // config.json refuses a model of experts, and its tensors have no names here. The vocabulary
  // stays readable.
  if (family != nullptr && !HasExperts(keys)) {
    for (const GgufFile::Tensor& tensor : file->tensors()) {
      if (tensor.name == kRopeDivisors) continue;  // part of config.json
      const GgufName renamed = HfNameOf(*family->gguf, tensor.name);
      if (!model.tensors.emplace(renamed.name, Store(*file, tensor, renamed.change, keys)).second) {
        throw Error(ErrorCode::kDataLoss,
                    file->name() + ": two tensors map to " + Quoted(renamed.name));
      }
    }
  }
  model.read_text = [file](std::string_view text) -> std::optional<std::string> {
    if (text == "config.json") return GgufConfigJson(*file);
    if (text == "generation_config.json") return GgufGenerationConfigJson(*file);
    if (text == "tokenizer.json") return GgufTokenizerJson(*file);
    if (text == "tokenizer.model") return GgufTokenizerModel(*file);
    if (text == "tokenizer_config.json") return GgufTokenizerConfigJson(*file);
    if (text == "1_Pooling/config.json") return GgufPoolingJson(*file);
    return std::nullopt;
  };
  return model;
}

}  // namespace tandem::engine
