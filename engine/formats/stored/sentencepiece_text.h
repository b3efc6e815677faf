#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/sentencepiece_type.h"

namespace tandem::engine {

struct ScoredPiece {
  std::string text;
  float score = 0;
  SentencePieceType type = SentencePieceType::kNormal;
};
// A SentencePiece vocabulary. WriteSentencePiece returns it as the bytes of a `tokenizer.model`,
// which engine/tokenizer reads.
struct SentencePieceText {
  std::vector<ScoredPiece> pieces;  // by id
  bool is_bpe = true;               // else Unigram
  std::string bos, eos;             // empty: none
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = false;
  std::string_view charsmap = {};
};
std::string WriteSentencePiece(const SentencePieceText& model);
// Returns the text with U+2581 in place of each space, as pieces spell it.
std::string WithMetaspaces(std::string_view text);

}  // namespace tandem::engine
