#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/sentencepiece_type.h"
#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {

// A SentencePiece `tokenizer.model`.
struct LoadedSentencePiece {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<TokenId> bos;  // control tokens with these roles in the model
  std::optional<TokenId> eos;
  bool is_bpe = false;
};

// `file` names the file in messages. Throws kDataLoss for a broken file, and kUnsupported for word
// and character models and for options that README.md does not list.
LoadedSentencePiece LoadSentencePiece(std::string_view bytes, const std::string& file);

// The content of such a file, for writing it in another format. Throws like LoadSentencePiece, as
// far as this content is concerned. Views into `bytes`.
struct SentencePieceList {
  struct Piece {
    std::string_view text;
    float score = 0;
    SentencePieceType type = SentencePieceType::kNormal;
  };
  std::vector<Piece> pieces;  // by id
  bool is_bpe = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  std::string_view charsmap;
};
SentencePieceList ListSentencePieces(std::string_view bytes, const std::string& file);

}  // namespace tandem::engine
