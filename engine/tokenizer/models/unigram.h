#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/tokenizer/models/piece_trie.h"
#include "engine/tokenizer/models/token_model.h"

namespace tandem::engine {

struct UnigramOptions {
  std::optional<TokenId> unk = std::nullopt;  // one token for neighbouring unknown characters
  bool byte_fallback = false;  // unknown characters become the tokens of their bytes, if all exist
  double unk_score = 0;        // score of one unknown character
  bool single_precision = false;  // stores path scores as floats, like SentencePiece
};

// Finds the token sequence with the greatest sum of scores by Viterbi's algorithm: the best path to
// each end of a character. Linear: every token has at most kLongestPiece bytes.
class UnigramModel final : public TokenModel {
 public:
  static constexpr size_t kLongestPiece = 1024;

  // `scores` by id. `unreachable`: tokens that text never becomes. `byte_tokens`: the token of each
  // byte, or -1.
  UnigramModel(UnigramOptions options, TokenTable tokens, std::vector<double> scores,
               const std::array<TokenId, 256>& byte_tokens,
               const std::vector<TokenId>& unreachable);

  std::unique_ptr<Scratch> MakeScratch() const override;
  void Encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const override;

 private:
  struct Buffers;

  void FindBestPath(std::string_view piece, Buffers& buffers) const;
  void AppendUnknown(std::string_view text, std::vector<TokenId>& out) const;

  UnigramOptions options_;
  std::vector<double> scores_;
  std::vector<bool> reachable_;  // by id
  std::array<TokenId, 256> byte_tokens_;
  PieceTrie trie_;
};

}  // namespace tandem::engine
