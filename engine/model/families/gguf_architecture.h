#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/model/families/config.h"

namespace tandem::engine {

// A family in GGUF files: names, settings and limits as data. engine/formats/gguf reads files by
// them, convert/formats/gguf writes files by them.

// Change that a writer makes to a tensor; the reader undoes it.
enum class GgufChange : uint8_t {
  kNone,
  kQueryPairs,  // interleaved rows (StoredTensor::interleaved_heads)
  kKeyPairs,
  kPlus1,       // 1 is added
  kTransposed,  // Conv1D stored as a linear layer; its bias is unchanged
  // The first or second half of the rows of the file's tensor. Writers join halves of stacked
  // experts only.
  kFirstHalf,
  kSecondHalf,
  kOneRow,  // a matrix of one row, in files a vector; readers take both
  // Keys and values of DeepSeek's latent: the file has the two parts of each head apart, keys as
  // [heads, latent, head] and values as [heads, head, latent].
  kLatentKeys,
  kLatentValues,
  // The file has -exp of the numbers (a decay's A for A_log), as a vector or as one column.
  kNegativeExp,
  kNegativeExpColumn,
  kColumn,  // a vector, in files one column
  kGroups,  // a vector, in files one row for each group of a scan
  kTaps,    // of a convolution: [channels, 1, kernel], in files [channels, kernel] and always f32
};
// Stands for an expert's number in a name. In `hf` alone, the file stacks the experts along a first
// axis; in both names, it has one tensor per expert.
inline constexpr std::string_view kExpertMark = "{E}";
// Another order of rows or columns in the file.
struct GgufOrder {
  int64_t (*count)(const ModelConfig& config);             // of the file's tensor
  int64_t (*of)(const ModelConfig& config, int64_t file);  // the family's place of the file's
  bool is_part = false;  // other tensors of the file have the rest of the weight
};
// Several rows may have the same name: readers take all that fit. Writers take the first, and the
// other parts of the same weight.
struct GgufPart {
  std::string_view gguf;  // whole, or without ".weight" or ".bias"
  std::string_view hf;
  GgufChange change = GgufChange::kNone;
  const GgufOrder* rows = nullptr;  // null: the family's
  const GgufOrder* columns = nullptr;
};

// The metadata of a file, read by keys without the architecture's name before them. All functions
// throw kDataLoss when a value has another type.
class GgufMetadata {
 public:
  virtual const std::string& source() const = 0;                 // of the file, for messages
  virtual std::string FullName(std::string_view key) const = 0;  // "<architecture>.<key>"
  // One number, or an array that holds the same number for each layer. Throws kUnsupported for an
  // array of different numbers.
  virtual std::optional<int64_t> Int(std::string_view key) const = 0;
  virtual std::optional<double> Number(std::string_view key) const = 0;
  virtual std::optional<std::string_view> String(std::string_view key) const = 0;
  // Integers or booleans; nullopt also when the value is no array.
  virtual std::optional<std::vector<int64_t>> Ints(std::string_view key) const = 0;
  virtual std::optional<bool> Bool(std::string_view key) const = 0;
  virtual std::optional<std::vector<float>> Floats(std::string_view key) const = 0;  // likewise
  virtual bool HasTensor(std::string_view name) const = 0;
  virtual std::optional<int64_t> TensorRows(std::string_view name) const = 0;
  // The divisors of rope frequencies in a tensor, one for each rotated pair; nullopt when the file
  // has no such tensor. Throws kDataLoss for another number of them.
  virtual std::optional<std::vector<float>> RopeDivisors(std::string_view tensor,
                                                         int64_t pairs) const = 0;
  // Throws kUnsupported: the file and the key, then `what`.
  [[noreturn]] virtual void Unsupported(std::string_view key, const std::string& what) const = 0;

  // Throw kDataLoss when the key is absent.
  int64_t RequiredInt(std::string_view key) const;
  double RequiredNumber(std::string_view key) const;

 protected:
  ~GgufMetadata() = default;
};

// A key without the architecture's name, and its value.
struct GgufSetting {
  std::string_view key;
  std::variant<uint32_t, float, bool, std::string_view, std::vector<bool>, std::vector<uint32_t>,
               std::vector<float>>
      value;
};

// A setting that readers of an architecture fix: returns its name, "a sliding window", when the
// configuration has another one, otherwise an empty string.
using GgufLimit = std::string (*)(const ModelConfig& config);

// Tensors of divisors of rope frequencies: Llama 3's, and LongRoPE's two kinds.
inline constexpr std::string_view kGgufRopeDivisors = "rope_freqs.weight";
inline constexpr std::string_view kGgufShortRopeDivisors = "rope_factors_short.weight";
inline constexpr std::string_view kGgufLongRopeDivisors = "rope_factors_long.weight";

// A tensor of zeros that other programs require and never read.
struct GgufFiller {
  std::string name;
  std::vector<int64_t> shape;  // outermost axis first
};

struct GgufArchitecture {
  std::string_view name;            // value of `general.architecture`
  std::span<const GgufPart> parts;  // inside a block
  std::span<const GgufPart> ends;   // outside the blocks
  std::string_view block;           // name prefix before a block's number
  // Tokenizer class of Hugging Face that reads this architecture's SentencePiece models.
  std::string_view sentencepiece_class = "LlamaTokenizer";
  // Adds the fields of config.json. Class, vocabulary, tied embeddings and tokens come from the
  // reader.
  void (*read_config)(const GgufMetadata& metadata, nlohmann::ordered_json& json);
  std::vector<GgufSetting> (*write_config)(const ModelConfig& config);
  std::span<const GgufLimit> limits;  // checked in this order
  bool has_experts = false;           // otherwise files with `expert_count` are refused
  // Several families may share a name. A file is of the first family whose `owns` holds, otherwise
  // of the first family without `owns`.
  bool (*owns)(const GgufMetadata& metadata) = nullptr;
  // Says how readers of other programs compute differently; empty if they do not. Null: never.
  std::string (*caveat)(const ModelConfig& config) = nullptr;
  // The divisors of rope frequencies in kGgufRopeDivisors. Null: Llama 3's, where the rope has
  // them.
  std::vector<float> (*rope_divisors)(const ModelConfig& config) = nullptr;
  std::vector<GgufFiller> (*fillers)(const ModelConfig& config) = nullptr;
  // Whether readers leave out a tensor. Null: they leave out none.
  bool (*ignores)(const GgufMetadata& metadata, std::string_view tensor) = nullptr;
  // Fixed factors of a config that its file has within the weights. `factor` multiplies the number
  // `row` of a weight's rows, which has no other order in the file. `folded` is the file's config.
  float (*factor)(const ModelConfig& config, std::string_view weight, int64_t row) = nullptr;
  ModelConfig (*folded)(const ModelConfig& config) = nullptr;
  // Of the family's models with experts, under the same or another name. Null: this one.
  const GgufArchitecture* with_experts = nullptr;
};

}  // namespace tandem::engine
