#pragma once

#include <optional>
#include <string_view>

#include "engine/tokenizer/readers/tiktoken.h"

namespace tandem::engine {

// Some tokenizer files do not state how they split text; the name of the tokenizer's class in
// tokenizer_config.json does. These are the libraries' names of tokenizers, not of model families.
// An ending "Fast" of a class does not count.

// A class of vocab.json with merges.txt.
struct TwoFileClass {
  std::string_view name;
  std::string_view pattern;
  bool nfc = false;
};
// An empty name is the first class of the table. Null: the class is not supported.
const TwoFileClass* FindTwoFileClass(std::string_view tokenizer_class);

// The family of a tiktoken file by the tokenizer's class, otherwise by config.json's `model_type`.
// Nullopt: neither says it.
std::optional<TiktokenFamily> FindTiktokenFamily(std::string_view tokenizer_class,
                                                 std::string_view model_type);
// Classes of tiktoken files, for messages: "A, B".
std::string_view TiktokenClassNames();

}  // namespace tandem::engine
