#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/models/piece_trie.h"
#include "engine/tokenizer/models/token_model.h"

namespace tandem::engine {

struct WordPieceOptions {
  TokenId unk = -1;
  std::string continuing_prefix = "##";
  size_t max_word_characters = 100;  // longer words are unknown
};

// BERT's model: takes the longest token from the left, repeatedly. A word with an unmatched rest
// becomes one unknown token. Linear: every token has at most kLongestPiece bytes.
class WordPieceModel final : public TokenModel {
 public:
  static constexpr size_t kLongestPiece = 1024;

  // `unreachable`: tokens that text never becomes.
  WordPieceModel(WordPieceOptions options, TokenTable tokens,
                 const std::vector<TokenId>& unreachable);

  std::unique_ptr<Scratch> MakeScratch() const override { return std::make_unique<Scratch>(); }
  void Encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const override;

 private:
  WordPieceOptions options_;
  PieceTrie trie_;
  PieceTrie::Node continuing_;  // root of tokens with the prefix, or kNone
};

// One token for every known word.
class WordLevelModel final : public TokenModel {
 public:
  // Without `unk`, a text with an unknown word is an error.
  WordLevelModel(std::optional<TokenId> unk, TokenTable tokens,
                 const std::vector<TokenId>& unreachable);

  std::unique_ptr<Scratch> MakeScratch() const override { return std::make_unique<Scratch>(); }
  void Encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const override;

 private:
  std::optional<TokenId> unk_;
  std::vector<bool> unreachable_;  // by id
};

}  // namespace tandem::engine
