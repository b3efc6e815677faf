#include "engine/formats/gguf/gguf_model.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/formats/gguf/gguf_joined.h"
#include "engine/formats/gguf/gguf_names.h"
#include "engine/formats/gguf/gguf_words.h"
#include "engine/model/families/gguf_config.h"

// Maps a file's keys to config.json by its family, and tensors to the layout that families expect.
namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

// Far above known models; each expert of a stacked tensor counts as a tensor.
constexpr int64_t kMaxExperts = 1 << 12;
constexpr size_t kMaxModelTensors = size_t{1} << 20;

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
  std::optional<bool> Bool(std::string_view key) const override {
    return file_.Bool(FullName(key));
  }
  std::optional<std::vector<int64_t>> Ints(std::string_view key) const override {
    const std::string name = FullName(key);
    return file_.IsArray(name) ? file_.Ints(name) : std::nullopt;
  }
  std::optional<std::vector<float>> Floats(std::string_view key) const override {
    const std::string name = FullName(key);
    return file_.IsArray(name) ? file_.Floats(name) : std::nullopt;
  }
  bool HasTensor(std::string_view name) const override { return file_.Find(name) != nullptr; }
  std::optional<int64_t> TensorRows(std::string_view name) const override {
    const GgufFile::Tensor* tensor = file_.Find(name);
    return tensor == nullptr ? std::nullopt : std::optional(tensor->shape.front());
  }
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
  std::optional<std::vector<float>> RopeDivisors(std::string_view name,
                                                 int64_t pairs) const override {
    const GgufFile::Tensor* tensor = file_.Find(name);
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
    if (count != pairs) {
      fail(ErrorCode::kDataLoss, "has " + std::to_string(count) +
                                     " numbers, but the rope of a head has " +
                                     std::to_string(pairs) + " frequencies");
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

bool IsPartOfConfig(std::string_view tensor) {
  return tensor == kGgufRopeDivisors || tensor == kGgufShortRopeDivisors ||
         tensor == kGgufLongRopeDivisors;
}

constexpr std::string_view kArchitectureKey = "general.architecture";

std::string_view ArchitectureOf(const GgufFile& file) {
  return file.String(kArchitectureKey).value_or("");
}

bool HasExperts(const Keys& keys) { return keys.Int("expert_count").value_or(0) > 0; }

// The family of a file whose architecture several families may share; null: none.
struct FoundFamily {
  const FamilySpec* family = nullptr;
  const GgufArchitecture* architecture = nullptr;
};

FoundFamily FindFamilyOf(const GgufFile& file) {
  const std::string_view name = ArchitectureOf(file);
  const Keys keys(file, name);
  FoundFamily found;
  for (const FamilySpec* family : Families()) {
    if (family->gguf == nullptr) continue;
    const GgufArchitecture& architecture = GgufArchitectureOf(*family, HasExperts(keys));
    if (architecture.name != name) continue;
    if (architecture.owns == nullptr) {
      if (found.family == nullptr) found = {family, &architecture};
    } else if (architecture.owns(keys)) {
      return {family, &architecture};
    }
  }
  return found;
}

// Blocks behind the model's own predict further tokens. As in llama.cpp, they are left out.
class OwnBlocks {
 public:
  explicit OwnBlocks(const Keys& keys) {
    if (keys.Int("nextn_predict_layers").value_or(0) > 0) n_ = GgufLayers(keys);
  }
  bool Has(std::string_view tensor) const {
    if (n_ < 0 || !tensor.starts_with(kBlock)) return true;
    int64_t block = 0;
    const char* const begin = tensor.data() + kBlock.size();
    const char* const end = tensor.data() + tensor.size();
    return std::from_chars(begin, end, block).ec != std::errc() || block < n_;
  }

 private:
  static constexpr std::string_view kBlock = "blk.";
  int64_t n_ = -1;  // -1: all
};

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
  int64_t heads = 0;
  if (const auto by_layer = keys.Ints(key)) {
    // Layers without attention have 0. The config refuses other differences.
    for (const int64_t n : *by_layer) heads = std::max(heads, n);
  } else {
    heads = keys.Int(key).value_or(keys.RequiredInt("attention.head_count"));
  }
  if (heads < 1 || tensor.shape.front() % heads != 0 || tensor.shape.front() / heads % 2 != 0) {
    throw Error(ErrorCode::kDataLoss, file.name() + ": tensor " + Quoted(tensor.name) + " has " +
                                          std::to_string(tensor.shape.front()) +
                                          " rows, which do not form " + std::to_string(heads) +
                                          " heads of even size");
  }
  return heads;
}

// Gate and up are the halves of one tensor's rows.
void TakeHalf(const GgufFile& file, const GgufFile::Tensor& tensor, bool second,
              StoredTensor* stored) {
  int64_t& rows = stored->view.shape.front();
  if (rows % 2 != 0) {
    throw Error(ErrorCode::kDataLoss, file.name() + ": tensor " + Quoted(tensor.name) + " has " +
                                          std::to_string(rows) +
                                          " rows, which have no equal halves");
  }
  rows /= 2;
  if (second) stored->view.data += tensor.data.size() / 2;
}

void RequirePlain(const GgufFile& file, const GgufFile::Tensor& tensor) {
  if (tensor.encoding == Encoding::kPlain) return;
  throw Error(ErrorCode::kUnsupported,
              file.name() + ": tensor " + Quoted(tensor.name) + " has type " +
                  std::string(EncodingName(tensor.encoding)) + "; it must be floating point");
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
    case GgufChange::kOneRow:
      if (stored.view.shape.size() == 1) stored.view.shape.insert(stored.view.shape.begin(), 1);
      break;
    case GgufChange::kTaps:
      if (stored.view.shape.size() == 2) stored.view.shape.insert(stored.view.shape.begin() + 1, 1);
      break;
    case GgufChange::kNegativeExp:
    case GgufChange::kNegativeExpColumn:
      return UndoNegativeExp(file, tensor);
    case GgufChange::kColumn:
    case GgufChange::kGroups:
      RequirePlain(file, tensor);
      stored.view.shape = {ElementCount(tensor.shape)};
      break;
    case GgufChange::kLatentKeys:
    case GgufChange::kLatentValues:
      break;  // JoinedTensors
    case GgufChange::kFirstHalf:
    case GgufChange::kSecondHalf:
      TakeHalf(file, tensor, change == GgufChange::kSecondHalf, &stored);
      break;
  }
  return stored;
}

// Calls `take` for each expert of a stacked tensor.
void ForEachExpert(const GgufFile& file, const GgufFile::Tensor& tensor,
                   const std::function<void(int64_t expert, const GgufFile::Tensor& slice)>& take) {
  const int64_t n = tensor.shape.front();
  if (tensor.shape.size() < 2 || n < 1 || n > kMaxExperts) {
    throw Error(ErrorCode::kDataLoss, file.name() + ": tensor " + Quoted(tensor.name) +
                                          " has shape " + ShapeText(tensor.shape) +
                                          "; expected 1 to " + std::to_string(kMaxExperts) +
                                          " experts along the first of at least 2 axes");
  }
  GgufFile::Tensor slice = tensor;
  slice.shape.erase(slice.shape.begin());
  const size_t bytes = tensor.data.size() / static_cast<size_t>(n);
  for (int64_t expert = 0; expert < n; ++expert) {
    slice.data = tensor.data.subspan(static_cast<size_t>(expert) * bytes, bytes);
    take(expert, slice);
  }
}

void AddTensor(const GgufFile& file, std::string name, StoredTensor stored,
               SingleFileModel* model) {
  if (model->tensors.size() >= kMaxModelTensors) {
    throw Error(ErrorCode::kDataLoss, file.name() + ": more than " +
                                          std::to_string(kMaxModelTensors) +
                                          " tensors, each expert counted");
  }
  const auto [place, is_new] = model->tensors.try_emplace(std::move(name), std::move(stored));
  if (is_new) return;
  throw Error(ErrorCode::kDataLoss, file.name() + ": two tensors map to " + Quoted(place->first));
}

void AddTensor(const GgufFile& file, const GgufFile::Tensor& tensor, const GgufName& renamed,
               const Keys& keys, SingleFileModel* model) {
  const size_t mark = renamed.name.find(kExpertMark);
  if (mark == std::string::npos) {
    return AddTensor(file, renamed.name, Store(file, tensor, renamed.change, keys), model);
  }
  ForEachExpert(file, tensor, [&](int64_t expert, const GgufFile::Tensor& slice) {
    std::string name = renamed.name;
    name.replace(mark, kExpertMark.size(), std::to_string(expert));
    AddTensor(file, std::move(name), Store(file, slice, renamed.change, keys), model);
  });
}

// Weights that the file has in parts or in another order. A whole tensor in the family's order
// comes before them: some files have both.
class JoinedTensors {
 public:
  JoinedTensors(const GgufFile& file, const Keys& keys) : file_(file), keys_(keys) {}

  // Takes a part; returns false for other tensors.
  bool Take(const GgufFile::Tensor& tensor, const GgufName& renamed) {
    if (renamed.change == GgufChange::kLatentKeys) {
      latents_[renamed.name].keys = &tensor;
    } else if (renamed.change == GgufChange::kLatentValues) {
      latents_[renamed.name].values = &tensor;
    } else if (renamed.rows != nullptr || renamed.columns != nullptr) {
      pieces_[renamed.name].push_back({.tensor = tensor.name,
                                       .stored = Store(file_, tensor, renamed.change, keys_),
                                       .rows = renamed.rows,
                                       .columns = renamed.columns});
    } else {
      return false;
    }
    return true;
  }
  void AddTo(const FamilySpec& family, SingleFileModel* model) {
    for (const auto& [name, parts] : latents_) {
      if (!model->tensors.contains(name)) AddTensor(file_, name, Join(parts), model);
    }
    std::erase_if(pieces_, [&](const auto& entry) { return model->tensors.contains(entry.first); });
    if (pieces_.empty()) return;
    // The order follows from the sizes.
    const ModelConfig config = ParseModelConfig(family, Json::parse(GgufConfigJson(file_)),
                                                file_.name() + " as config.json");
    for (auto& [name, pieces] : pieces_) {
      AddTensor(file_, name, JoinPieces(file_, name, std::move(pieces), config), model);
    }
  }

 private:
  struct Latent {
    const GgufFile::Tensor* keys = nullptr;
    const GgufFile::Tensor* values = nullptr;
  };
  StoredTensor Join(const Latent& parts) const {
    if (parts.keys != nullptr && parts.values != nullptr) {
      return JoinLatentParts(file_, *parts.keys, *parts.values);
    }
    const GgufFile::Tensor& found = *(parts.keys == nullptr ? parts.values : parts.keys);
    throw Error(ErrorCode::kDataLoss,
                file_.name() + ": tensor " + Quoted(found.name) +
                    " has no counterpart: 'attn_k_b' and 'attn_v_b' of a block make one weight");
  }

  const GgufFile& file_;
  const Keys& keys_;
  std::map<std::string, Latent> latents_;  // by the weight's name, as the next
  std::map<std::string, std::vector<GgufPiece>> pieces_;
};

}  // namespace

std::string GgufConfigJson(const GgufFile& file) {
  const auto [family, architecture] = FindFamilyOf(file);
  if (family == nullptr) {
    file.Unsupported(kArchitectureKey, "is " + Quoted(ArchitectureOf(file)) + "; supported are " +
                                           GgufArchitectureNames() +
                                           "; other families load from safetensors");
  }
  const Keys keys(file, architecture->name);
  if (HasExperts(keys) && !architecture->has_experts) {
    keys.Unsupported("expert_count", "is above 0: mixture-of-experts models are not supported");
  }
  Json json = {{"architectures", Json::array({family->architectures[0]})},
               {"model_type", family->architectures[1]}};
  const int64_t vocab_size = VocabularySize(file);
  json["vocab_size"] = vocab_size;
  architecture->read_config(keys, json);
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
  const auto [family, architecture] = FindFamilyOf(*file);
  const Keys keys(*file, family == nullptr ? "" : architecture->name);
  // config.json refuses experts of a family without them, and the tensors have no names here. The
  // vocabulary stays readable.
  if (family != nullptr && (architecture->has_experts || !HasExperts(keys))) {
    const OwnBlocks blocks(keys);
    JoinedTensors joined(*file, keys);
    for (const GgufFile::Tensor& tensor : file->tensors()) {
      if (IsPartOfConfig(tensor.name) || !blocks.Has(tensor.name)) continue;
      if (architecture->ignores != nullptr && architecture->ignores(keys, tensor.name)) continue;
      for (const GgufName& renamed : HfNamesOf(*architecture, tensor.name)) {
        if (!joined.Take(tensor, renamed)) AddTensor(*file, tensor, renamed, keys, &model);
      }
    }
    joined.AddTo(*family, &model);
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
