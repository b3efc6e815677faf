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
  std::string model;                // kGgufByteLevelBpe or kGgufSentencePiece
  std::string pre = "default";      // byte-level BPE: name of the pre-tokenizer
  std::vector<Token> tokens;        // by id
  std::vector<std::string> merges;  // byte-level BPE: "a b", highest priority first
  // Fields of SentencePiece only.
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
