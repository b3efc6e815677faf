#include "engine/tokenizer/readers/tokenizer_classes.h"

#include <algorithm>
#include <array>

#include "engine/tokenizer/pretokenizers/pretokenizer.h"

namespace tandem::engine {
namespace {

constexpr auto kTwoFileClasses = std::to_array<TwoFileClass>({
    {"GPT2Tokenizer", kGpt2Pattern},
    {"Qwen2Tokenizer", kQwenPattern, /*nfc=*/true},
});

struct TiktokenName {
  std::string_view name;
  TiktokenFamily family;
};
constexpr auto kTiktokenClasses = std::to_array<TiktokenName>({
    {"QWenTokenizer", TiktokenFamily::kQwen},
    {"Qwen2Tokenizer", TiktokenFamily::kQwen},
    {"Llama3Tokenizer", TiktokenFamily::kLlama3},
});
// Values of `model_type` in repositories that hold a tiktoken file.
constexpr auto kTiktokenModelTypes = std::to_array<TiktokenName>({
    {"qwen", TiktokenFamily::kQwen},
    {"qwen2", TiktokenFamily::kQwen},
    {"qwen3", TiktokenFamily::kQwen},
    {"llama", TiktokenFamily::kLlama3},
});

std::string_view WithoutFast(std::string_view tokenizer_class) {
  if (tokenizer_class.ends_with("Fast")) tokenizer_class.remove_suffix(4);
  return tokenizer_class;
}

template <class Row, size_t n>
const Row* FindRow(const std::array<Row, n>& rows, std::string_view name) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.name == name; });
  return found == rows.end() ? nullptr : &*found;
}

}  // namespace

const TwoFileClass* FindTwoFileClass(std::string_view tokenizer_class) {
  const std::string_view name = WithoutFast(tokenizer_class);
  return name.empty() ? &kTwoFileClasses.front() : FindRow(kTwoFileClasses, name);
}

std::optional<TiktokenFamily> FindTiktokenFamily(std::string_view tokenizer_class,
                                                 std::string_view model_type) {
  const TiktokenName* found = FindRow(kTiktokenClasses, WithoutFast(tokenizer_class));
  if (found == nullptr) found = FindRow(kTiktokenModelTypes, model_type);
  return found == nullptr ? std::nullopt : std::optional(found->family);
}

std::string_view TiktokenClassNames() { return "QWenTokenizer, Llama3Tokenizer"; }

}  // namespace tandem::engine
