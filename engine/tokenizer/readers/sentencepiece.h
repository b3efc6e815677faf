#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/sentencepiece_type.h"
#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {

// A `tokenizer.model` as SentencePiece writes it.
struct LoadedSentencePiece {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<TokenId> bos;  // the control tokens that the model calls so
  std::optional<TokenId> eos;
  bool is_bpe = false;
};

// `file` names the file in messages. Throws kDataLoss for a broken file, kUnsupported for a model
// of words or characters and for options that README.md does not list.
LoadedSentencePiece LoadSentencePiece(std::string_view bytes, const std::string& file);

// What such a file lists, for whoever writes it down in another format. Throws as above, for what
// is told here. Views into `bytes`.
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
