#include "engine/formats/gguf/gguf_model.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/quoted.h"
#include "engine/formats/gguf/gguf_names.h"
#include "engine/formats/gguf/gguf_words.h"

// Maps the keys of each architecture to config.json, and tensors to the layout that families
// expect.
namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

// The keys of one architecture, `<architecture>.<key>`.
class Keys {
 public:
  Keys(const GgufFile& file, std::string architecture)
      : file_(file), prefix_(std::move(architecture) + ".") {}

  const GgufFile& file() const { return file_; }
  std::string Name(std::string_view key) const { return prefix_ + std::string(key); }
  bool Has(std::string_view key) const { return file_.Has(Name(key)); }
  std::optional<double> Number(std::string_view key) const { return file_.Number(Name(key)); }
  // One number, or an array that holds the same number for each layer.
  std::optional<int64_t> Int(std::string_view key) const {
    const std::string name = Name(key);
    if (!file_.IsArray(name)) return file_.Int(name);
    const std::vector<int64_t> numbers = file_.Ints(name).value_or(std::vector<int64_t>());
    if (numbers.empty()) file_.Broken(name, "is empty");
    if (std::any_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n != numbers[0]; })) {
      file_.Unsupported(name, "differs from layer to layer, which is not supported");
    }
    return numbers[0];
  }
  int64_t RequiredInt(std::string_view key) const { return Required(key, Int(key)); }
  double RequiredNumber(std::string_view key) const { return Required(key, Number(key)); }

 private:
  template <class T>
  T Required(std::string_view key, const std::optional<T>& value) const {
    if (!value) throw Error(ErrorCode::kDataLoss, file_.name() + ": no key " + Quoted(Name(key)));
    return *value;
  }

  const GgufFile& file_;
  std::string prefix_;
};

void AddLlama(const Keys& keys, Json& json);
void AddQwen(const Keys& keys, Json& json);
void AddGemma(const Keys& keys, Json& json);
void AddGemma2(const Keys& keys, Json& json);
void AddGemma3(const Keys& keys, Json& json);
void AddGpt2(const Keys& keys, Json& json);

// Adds the config.json fields of one architecture of gguf_names.h.
struct ConfigOf {
  std::string_view architecture;
  void (*add)(const Keys& keys, Json& json);
};
constexpr auto kConfigs = std::to_array<ConfigOf>({
    {"llama", AddLlama},
    {"qwen2", AddQwen},
    {"qwen3", AddQwen},
    {"gemma", AddGemma},
    {"gemma2", AddGemma2},
    {"gemma3", AddGemma3},
    {"gpt2", AddGpt2},
});

void AddConfig(const GgufArchitecture& architecture, const Keys& keys, Json& json) {
  for (const ConfigOf& config : kConfigs) {
    if (config.architecture == architecture.name) return config.add(keys, json);
  }
  TANDEM_CHECK(false);
}

constexpr std::string_view kArchitectureKey = "general.architecture";

const GgufArchitecture* FindArchitecture(const GgufFile& file) {
  return FindGgufArchitecture(file.String(kArchitectureKey).value_or(""));
}

[[noreturn]] void RefuseArchitecture(const GgufFile& file) {
  std::string supported;
  for (const GgufArchitecture& architecture : GgufArchitectures()) {
    supported += (supported.empty() ? "" : ", ") + std::string(architecture.name);
  }
  file.Unsupported(kArchitectureKey, "is " + Quoted(file.String(kArchitectureKey).value_or("")) +
                                         "; supported are " + supported);
}

bool HasExperts(const Keys& keys) { return keys.Int("expert_count").value_or(0) > 0; }

// ---- config.json

// Adds sizes under the names that the decoders from Llama to Gemma share.
void AddDecoder(const Keys& keys, Json& json) {
  const GgufFile& file = keys.file();
  // Comes first: such files lack keys that the code below requires.
  if (HasExperts(keys)) {
    file.Unsupported(keys.Name("expert_count"), "is above 0; experts are not supported");
  }
  const int64_t heads = keys.RequiredInt("attention.head_count");
  json["hidden_size"] = keys.RequiredInt("embedding_length");
  json["intermediate_size"] = keys.RequiredInt("feed_forward_length");
  json["num_hidden_layers"] = keys.RequiredInt("block_count");
  json["num_attention_heads"] = heads;
  json["num_key_value_heads"] = keys.Int("attention.head_count_kv").value_or(heads);
  json["max_position_embeddings"] = keys.RequiredInt("context_length");
  const auto head_dim = keys.Int("attention.key_length");
  if (head_dim) json["head_dim"] = *head_dim;
  if (const auto value_dim = keys.Int("attention.value_length");
      value_dim && value_dim != head_dim) {
    file.Unsupported(keys.Name("attention.value_length"),
                     "differs from the key length, which is not supported");
  }
  if (const auto rotated = keys.Int("rope.dimension_count")) {
    const int64_t hidden = json["hidden_size"].get<int64_t>();
    if (*rotated != head_dim.value_or(heads > 0 ? hidden / heads : 0)) {
      file.Unsupported(keys.Name("rope.dimension_count"),
                       "is not the size of a head; rotating a part of it is not supported");
    }
  }
  json["rms_norm_eps"] = Shortest(keys.RequiredNumber("attention.layer_norm_rms_epsilon"));
  if (const auto theta = keys.Number("rope.freq_base")) json["rope_theta"] = Shortest(*theta);
  json["attention_bias"] = file.Find("blk.0.attn_q.bias") != nullptr;
}

// Follows llama.cpp where its YaRN differs from Hugging Face's: the attention factors multiply the
// formula's own factor. `attention_factor` replaces that factor, so it holds the product.
Json YarnScaling(const Keys& keys, double factor) {
  const auto refuse_unless = [&](std::string_view key, double plain) {
    if (keys.Number(key).value_or(plain) == plain) return;
    keys.file().Unsupported(keys.Name(key), "is not " + std::to_string(static_cast<int>(plain)) +
                                                ", which is not supported");
  };
  refuse_unless("rope.scaling.yarn_log_multiplier", 0);
  refuse_unless("rope.scaling.yarn_ext_factor", 1);
  Json scaling = {{"rope_type", "yarn"}, {"factor", factor}};
  const auto copy = [&](std::string_view key, const char* field) {
    if (const auto number = keys.Number(key)) scaling[field] = Shortest(*number);
  };
  if (const auto length = keys.Int("rope.scaling.original_context_length")) {
    scaling["original_max_position_embeddings"] = *length;
  }
  copy("rope.scaling.yarn_beta_fast", "beta_fast");
  copy("rope.scaling.yarn_beta_slow", "beta_slow");
  const double attention = Shortest(keys.Number("rope.scaling.attn_factor").value_or(1)) *
                           Shortest(keys.Number("rope.scaling.yarn_attn_factor").value_or(1));
  if (attention != 1) {
    scaling["attention_factor"] =
        attention * (factor > 1 ? 0.1 * std::log(factor) + 1 : 1);  // Peng et al. 2023
  }
  return scaling;
}

// Llama 3's divisor of a frequency (transformers' llama3 rope).
double Llama3Divisor(double turns, double factor, double low, double high) {
  if (turns > high) return 1;
  if (turns < low) return factor;
  const double smooth = (turns - low) / (high - low);
  return 1 / ((1 - smooth) / factor + smooth);
}

// Reads the divisor of each rope frequency: one number for each pair of a head.
std::vector<float> ReadDivisors(const Keys& keys, const GgufFile::Tensor& tensor,
                                int64_t head_dim) {
  const auto fail = [&](ErrorCode code, const std::string& what) {
    throw Error(code, keys.file().name() + ": tensor " + Quoted(tensor.name) + " " + what);
  };
  // Block formats need rows of a matrix.
  if (tensor.encoding != Encoding::kPlain) {
    fail(ErrorCode::kUnsupported, "is of type " + std::string(EncodingName(tensor.encoding)) +
                                      "; divisors of frequencies are supported as floats");
  }
  const int64_t count = ElementCount(tensor.shape);
  if (count != head_dim / 2) {
    fail(ErrorCode::kDataLoss, "has " + std::to_string(count) + " numbers for a head of " +
                                   std::to_string(head_dim) + ", which has " +
                                   std::to_string(head_dim / 2) + " frequencies");
  }
  return DecodeTensor({.view = {tensor.data.data(), tensor.dtype, tensor.shape}});
}

// Recovers the parameters of Llama 3's formula from the divisors that the file stores. The low and
// high factors are those of all releases. The largest divisor is the factor. A frequency between
// the borders yields the original context length.
Json Llama3Scaling(const Keys& keys, const std::vector<float>& divisors, double theta) {
  constexpr double kLow = 1, kHigh = 4, kUsualLength = 8192;
  const double factor = *std::max_element(divisors.begin(), divisors.end());
  const auto turns_per_position = [&](size_t i) {
    const double exponent = -static_cast<double>(i) / static_cast<double>(divisors.size());
    return std::pow(theta, exponent) / (2 * std::numbers::pi);
  };
  double length = kUsualLength;
  for (size_t i = 0; i < divisors.size(); ++i) {
    const double divisor = divisors[i];
    if (!(divisor > 1 && divisor < factor)) continue;
    const double smooth = (1 / divisor - 1 / factor) / (1 - 1 / factor);
    length = std::round((kLow + smooth * (kHigh - kLow)) / turns_per_position(i));
    break;
  }
  bool follows = length >= 1 && length < 1e9 && factor > 1;
  for (size_t i = 0; follows && i < divisors.size(); ++i) {
    const double expected = Llama3Divisor(length * turns_per_position(i), factor, kLow, kHigh);
    follows = std::abs(static_cast<double>(divisors[i]) - expected) <= 1e-3 * expected;
  }
  if (!follows) {
    throw Error(ErrorCode::kUnsupported,
                keys.file().name() +
                    ": tensor 'rope_freqs.weight' does not follow Llama 3's formula; other "
                    "divisors of frequencies are not supported");
  }
  return Json{{"rope_type", "llama3"},
              {"factor", Shortest(factor)},
              {"low_freq_factor", kLow},
              {"high_freq_factor", kHigh},
              {"original_max_position_embeddings", static_cast<int64_t>(length)}};
}

// Returns the rope scaling of the keys, null for none. As in llama.cpp, a factor without a type is
// linear, `rope.scale_linear` is its old name, and factors 0 and 1 change nothing.
Json ScalingOfKeys(const Keys& keys) {
  const std::string key = keys.Name("rope.scaling.type");
  const std::string_view type = keys.file().String(key).value_or("linear");
  if (type != "none" && type != "linear" && type != "yarn") {
    keys.file().Unsupported(key,
                            "is " + Quoted(type) + "; supported are 'none', 'linear' and 'yarn'");
  }
  if (type == "none") return nullptr;
  auto told = keys.Number("rope.scaling.factor");
  if (!told) told = keys.Number("rope.scale_linear");
  const double factor = told.value_or(0) == 0 ? 1 : Shortest(*told);
  if (type == "yarn") return YarnScaling(keys, factor);
  return factor == 1 ? Json(nullptr) : Json{{"rope_type", "linear"}, {"factor", factor}};
}

void AddRopeScaling(const Keys& keys, Json& json) {
  const GgufFile& file = keys.file();
  Json scaling = ScalingOfKeys(keys);
  if (const GgufFile::Tensor* tensor = file.Find("rope_freqs.weight")) {
    const int64_t hidden = json["hidden_size"].get<int64_t>(),
                  heads = json["num_attention_heads"].get<int64_t>();
    const auto head_dim = json.find("head_dim");
    const std::vector<float> divisors = ReadDivisors(
        keys, *tensor,
        head_dim != json.end() ? head_dim->get<int64_t>() : hidden / std::max<int64_t>(heads, 1));
    const bool divide =
        std::any_of(divisors.begin(), divisors.end(), [](float divisor) { return divisor != 1; });
    if (divide && !scaling.is_null()) {
      throw Error(ErrorCode::kUnsupported,
                  file.name() + ": tensor 'rope_freqs.weight' divides frequencies that key " +
                      Quoted(keys.Name("rope.scaling.type")) +
                      " scales too; both at once are not supported");
    }
    const auto theta = json.find("rope_theta");
    if (divide) {
      scaling = Llama3Scaling(keys, divisors, theta == json.end() ? 10000 : theta->get<double>());
    }
  }
  if (!scaling.is_null()) json["rope_scaling"] = std::move(scaling);
}

void AddLlama(const Keys& keys, Json& json) {
  AddDecoder(keys, json);
  AddRopeScaling(keys, json);
  const GgufFile& file = keys.file();
  json["hidden_act"] = "silu";
  json["mlp_bias"] = file.Find("blk.0.ffn_up.bias") != nullptr;
  // Mistral models use this name too; their early versions have a window.
  const int64_t window = keys.Int("attention.sliding_window").value_or(0);
  if (window <= 0) return;
  json["architectures"] = Json::array({"MistralForCausalLM"});
  json["model_type"] = "mistral";
  json["sliding_window"] = window;
}

void AddQwen(const Keys& keys, Json& json) {
  AddDecoder(keys, json);
  AddRopeScaling(keys, json);
  json["hidden_act"] = "silu";
  json["use_sliding_window"] = false;
}

void AddGemma(const Keys& keys, Json& json) {
  AddDecoder(keys, json);
  AddRopeScaling(keys, json);
  json["hidden_activation"] = "gelu_pytorch_tanh";
}

// Attention scores are divided by the root of this scalar. It is the head size, except in the
// largest models, where it is hidden size / heads. Without `attention.scale`, the number of layers
// identifies these models.
void AddQueryScalar(const Keys& keys, int64_t layers_of_largest, Json& json) {
  const int64_t hidden = json["hidden_size"].get<int64_t>();
  const int64_t heads = json["num_attention_heads"].get<int64_t>();
  if (const auto scale = keys.Number("attention.scale"); scale && *scale > 0) {
    // The key is a float; the scalar it was computed from is a whole number in every known model.
    const double scalar = 1 / (*scale * *scale), whole = std::round(scalar);
    json["query_pre_attn_scalar"] = std::abs(scalar - whole) < 1e-6 * scalar ? whole : scalar;
  } else if (json["num_hidden_layers"] == layers_of_largest || !json.contains("head_dim")) {
    json["query_pre_attn_scalar"] = heads > 0 ? hidden / heads : 0;
  } else {
    json["query_pre_attn_scalar"] = json["head_dim"];
  }
}

void AddCap(const Keys& keys, std::string_view key, const char* field, Json& json) {
  const auto cap = keys.Number(key);
  if (cap) json[field] = *cap > 0 ? Json(Shortest(*cap)) : Json(nullptr);
}

void AddGemma2(const Keys& keys, Json& json) {
  AddGemma(keys, json);
  AddQueryScalar(keys, 46, json);
  AddCap(keys, "attn_logit_softcapping", "attn_logit_softcapping", json);
  AddCap(keys, "final_logit_softcapping", "final_logit_softcapping", json);
  json["sliding_window"] = keys.Int("attention.sliding_window").value_or(4096);
}

void AddGemma3(const Keys& keys, Json& json) {
  AddGemma(keys, json);
  if (!json.contains("rope_theta")) json["rope_theta"] = 1000000.0;
  AddQueryScalar(keys, 62, json);
  AddCap(keys, "final_logit_softcapping", "final_logit_softcapping", json);
  if (const auto theta = keys.Number("rope.freq_base_swa")) {
    json["rope_local_base_freq"] = Shortest(*theta);
  }
  const int64_t window = keys.Int("attention.sliding_window").value_or(0);
  json["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
  const std::string pattern = keys.Name("attention.sliding_window_pattern");
  if (keys.file().IsArray(pattern)) {
    Json types = Json::array();
    const std::vector<int64_t> by_layer =
        keys.file().Ints(pattern).value_or(std::vector<int64_t>());
    for (const int64_t windowed : by_layer) {
      types.push_back(windowed != 0 ? "sliding_attention" : "full_attention");
    }
    json["layer_types"] = std::move(types);
  } else if (const auto every = keys.file().Int(pattern)) {
    json["sliding_window_pattern"] = *every;
  }
}

void AddGpt2(const Keys& keys, Json& json) {
  json["n_embd"] = keys.RequiredInt("embedding_length");
  json["n_inner"] = keys.RequiredInt("feed_forward_length");
  json["n_layer"] = keys.RequiredInt("block_count");
  json["n_head"] = keys.RequiredInt("attention.head_count");
  json["n_positions"] = keys.RequiredInt("context_length");
  json["activation_function"] = "gelu_new";
  json["layer_norm_epsilon"] = Shortest(keys.RequiredNumber("attention.layer_norm_epsilon"));
}

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
                                          " rows, which are not " + std::to_string(heads) +
                                          " heads of an even size");
  }
  return heads;
}

StoredTensor Store(const GgufFile& file, const GgufFile::Tensor& tensor, GgufChange change,
                   const Keys& keys) {
  StoredTensor stored{.view = {tensor.data.data(), tensor.dtype, tensor.shape},
                      .encoding = tensor.encoding};
  if (tensor.encoding != Encoding::kPlain && tensor.shape.size() != 2) {
    throw Error(ErrorCode::kUnsupported,
                file.name() + ": tensor " + Quoted(tensor.name) + " is no matrix and of type " +
                    std::string(EncodingName(tensor.encoding)) + ", which is not supported");
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

double Shortest(double value) {
  const auto narrow = static_cast<float>(value);
  if (narrow != value) return value;
  std::array<char, 32> text{};
  *std::to_chars(text.data(), text.data() + text.size() - 1, narrow).ptr = '\0';
  return std::strtod(text.data(), nullptr);
}

std::string GgufConfigJson(const GgufFile& file) {
  const GgufArchitecture* architecture = FindArchitecture(file);
  if (architecture == nullptr) RefuseArchitecture(file);
  const Keys keys(file, std::string(architecture->name));
  Json json = {{"architectures", Json::array({architecture->hf_class})},
               {"model_type", architecture->hf_type}};
  const int64_t vocab_size = VocabularySize(file);
  json["vocab_size"] = vocab_size;
  AddConfig(*architecture, keys, json);
  json["tie_word_embeddings"] = file.Find("output.weight") == nullptr;
  const auto token = [&](std::string_view key) {
    const auto id = TokenOf(file, key, vocab_size);
    return id ? Json(*id) : Json(nullptr);
  };
  json["bos_token_id"] = token("tokenizer.ggml.bos_token_id");
  json["eos_token_id"] = token("tokenizer.ggml.eos_token_id");
  return json.dump(2) + "\n";
}

SingleFileModel ReadGgufModel(GgufFile gguf) {
  const auto file = std::make_shared<const GgufFile>(std::move(gguf));
  SingleFileModel model;
  const GgufArchitecture* architecture = FindArchitecture(*file);
  const Keys keys(*file, architecture == nullptr ? "" : std::string(architecture->name));
  // config.json refuses a model of experts, and its tensors have no names here. The vocabulary
  // stays readable.
  if (architecture != nullptr && !HasExperts(keys)) {
    for (const GgufFile::Tensor& tensor : file->tensors()) {
      if (tensor.name == "rope_freqs.weight") continue;  // part of config.json
      const GgufName renamed = HfNameOf(*architecture, tensor.name);
      if (!model.tensors.emplace(renamed.name, Store(*file, tensor, renamed.change, keys)).second) {
        throw Error(ErrorCode::kDataLoss,
                    file->name() + ": two tensors are " + Quoted(renamed.name));
      }
    }
  }
  model.read_text = [file](std::string_view text) -> std::optional<std::string> {
    if (text == "config.json") return GgufConfigJson(*file);
    if (text == "generation_config.json") return GgufGenerationConfigJson(*file);
    if (text == "tokenizer.json") return GgufTokenizerJson(*file);
    if (text == "tokenizer.model") return GgufTokenizerModel(*file);
    if (text == "tokenizer_config.json") return GgufTokenizerConfigJson(*file);
    return std::nullopt;
  };
  return model;
}

}  // namespace tandem::engine
