#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/pretokenizer.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/unicode.h"

namespace tandem::engine {

// Rewrites text before it is cut into pieces: steps in order.
struct PrependText {
  std::string text;  // before any text that is not empty
};
struct ReplaceText {
  std::string from;  // literal, not empty
  std::string to;
};
using NormalizerStep = std::variant<NormalForm, PrependText, ReplaceText>;

// The parts of a `tokenizer.json`, read and checked.
struct BpeTokenizerParts {
  BpeModel model;
  std::vector<NormalizerStep> normalizer;
  Pretokenizer pretokenizer;
  std::vector<AddedToken> added_tokens;
  std::vector<std::string> texts;  // by id: the bytes of each token; its size is the vocabulary's
  bool strips_leading_space = false;
};

// text -> added tokens | ordinary text -> normalised -> pieces -> merged tokens
class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeTokenizerParts parts);

  std::vector<TokenId> Encode(std::string_view text, SpecialTokens special) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(is_special_.size()); }
  std::string_view TokenBytes(TokenId id) const override;
  bool IsSpecial(TokenId id) const override;
  std::optional<TokenId> FindToken(std::string_view spelling) const override;
  bool adds_leading_space() const override { return adds_leading_space_; }

 private:
  // Added tokens to look for, in the raw and in the normalised text.
  struct Matchers {
    AddedTokenMatcher raw;
    AddedTokenMatcher normalized;
  };
  struct Run;  // one call of Encode

  Matchers MakeMatchers(const std::vector<AddedToken>& tokens, bool with_control) const;
  void EncodeText(std::string_view text, Run& run) const;
  void EncodePieces(std::string_view text, bool at_start, Run& run) const;
  void EncodePiece(std::string_view piece, Run& run) const;
  std::string Normalized(std::string_view text, bool at_start) const;

  BpeModel model_;
  std::vector<NormalizerStep> normalizer_;
  Pretokenizer pretokenizer_;
  Matchers parse_special_;
  Matchers plain_text_;
  std::unordered_map<std::string, TokenId> added_ids_;
  std::string text_arena_;
  std::vector<uint32_t> text_begin_;  // by id, and one more for the end
  std::vector<bool> is_special_;      // by id
  bool adds_leading_space_;
  bool splits_at_metaspace_;  // see bpe_tokenizer.cc
};

}  // namespace tandem::engine
