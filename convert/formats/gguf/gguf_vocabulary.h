#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/sentencepiece_type.h"

namespace tandem::convert {

// A vocabulary as GGUF lists it.
struct GgufVocabulary {
  struct Token {
    std::string text;  // empty: no token has this id
    float score = 0;
    SentencePieceType type = SentencePieceType::kNormal;
  };
  std::string model;                // "gpt2" or "llama"
  std::string pre = "default";      // gpt2: how text is cut
  std::vector<Token> tokens;        // by id
  std::vector<std::string> merges;  // gpt2: "a b", the first first
  // llama
  bool add_space_prefix = true;
  bool remove_extra_whitespaces = false;
  std::string charsmap;
  std::vector<std::string> warnings;

  // The token of the id, made if there is none yet. Throws kDataLoss for an id that no vocabulary
  // has.
  Token& At(int64_t id, const std::string& source);
};

// From the texts of a directory's files, by name. Throws kUnsupported naming the part that GGUF has
// no words for; nullopt where there is no tokenizer. The files have been loaded before
// (engine::LoadTokenizer), so that they are whole.
using ReadTextFunction = std::function<std::optional<std::string>(std::string_view file_name)>;
std::optional<GgufVocabulary> ReadGgufVocabulary(const std::string& source,
                                                 const ReadTextFunction& read);

}  // namespace tandem::convert
