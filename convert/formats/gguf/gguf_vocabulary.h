#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/sentencepiece_type.h"

namespace tandem::convert {

// A vocabulary in GGUF's terms.
struct GgufVocabulary {
  struct Token {
    std::string text;  // empty: no token has this id
    float score = 0;
    SentencePieceType type = SentencePieceType::kNormal;
  };
  std::string model;                // "gpt2" or "llama"
  std::string pre = "default";      // gpt2: name of the pre-tokenizer
  std::vector<Token> tokens;        // by id
  std::vector<std::string> merges;  // gpt2: "a b", highest priority first
  // Fields of "llama" only.
  bool add_space_prefix = true;
  bool remove_extra_whitespaces = false;
  std::string charsmap;
  std::vector<std::string> warnings;

  // Returns the token of an id, creating it if needed. Throws kDataLoss for an id out of range.
  Token& At(int64_t id, const std::string& source);
};

// Reads a vocabulary from a directory's files; `read` returns a file's text by name. Returns
// nullopt without a tokenizer. Throws kUnsupported naming the part that GGUF cannot express.
// REQUIRES: engine::LoadTokenizer has accepted the files.
using ReadTextFunction = std::function<std::optional<std::string>(std::string_view file_name)>;
std::optional<GgufVocabulary> ReadGgufVocabulary(const std::string& source,
                                                 const ReadTextFunction& read);

}  // namespace tandem::convert
