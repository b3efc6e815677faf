#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/decoder.h"
#include "engine/tokenizer/models/token_model.h"
#include "engine/tokenizer/normalizers/normalizer.h"
#include "engine/tokenizer/pretokenizers/pretokenizer.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/vocabulary.h"

namespace tandem::engine {

// The parts of a tokenizer after reading and checking.
struct TokenizerParts {
  std::unique_ptr<TokenModel> model;
  Normalizer normalizer;
  Pretokenizer pretokenizer{{}};
  Decoder decoder;
  std::vector<AddedToken> added_tokens;
  // Normalises the spelling of added tokens that are searched in normalised text.
  bool normalizes_added_tokens = true;
  std::vector<std::string> spellings;  // by id; its size is the vocabulary's
  std::unordered_map<std::string, TokenId> unreachable;
  bool byte_level = false;            // tokens of the model are bytes
  bool spells_bytes = false;          // the model sees bytes as characters (AppendByteSpelling)
  bool strips_leading_space = false;  // decoding removes one leading space

  // Takes added tokens, spellings and unreachable tokens from the vocabulary.
  void Take(const Vocabulary& vocabulary);
};

// text -> added tokens | ordinary text -> normalised -> pieces -> tokens
class PipelineTokenizer final : public Tokenizer {
 public:
  explicit PipelineTokenizer(TokenizerParts parts);

  std::vector<TokenId> EncodeMixed(std::string_view text,
                                   std::span<const TextRange> client) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(is_special_.size()); }
  std::string_view TokenBytes(TokenId id) const override;
  bool IsSpecial(TokenId id) const override;
  std::optional<TokenId> FindToken(std::string_view spelling) const override;
  bool adds_leading_space() const override { return adds_leading_space_; }
  const Decoder* decoder() const override { return &decoder_; }
  std::optional<std::string> TextAt(TokenId id, TokenPlace place) const override;

 private:
  // Strings by id.
  struct Strings {
    std::string arena;
    std::vector<uint32_t> begin;  // and one more for the end

    void Add(std::string_view text);
    std::string_view At(TokenId id) const;
  };
  // Matchers of added tokens for the raw and the normalised text.
  struct Matchers {
    AddedTokenMatcher raw;
    AddedTokenMatcher normalized;
  };
  struct Run;  // one call of EncodeMixed

  Matchers MakeMatchers(const std::vector<AddedToken>& tokens) const;
  void EncodeText(std::string_view text, Run& run) const;
  NormalizedText Normalized(std::string_view text, bool at_start,
                            std::vector<TextRange> client) const;
  void EncodePieces(const PieceOfText& text, Run& run) const;
  void EncodePiece(std::string_view piece, Run& run) const;

  std::unique_ptr<TokenModel> model_;
  Normalizer normalizer_;
  Pretokenizer pretokenizer_;
  Decoder decoder_;
  bool normalizes_added_tokens_;
  bool byte_level_;
  bool spells_bytes_;
  Matchers added_tokens_;
  std::unordered_map<std::string, TokenId> names_;  // tokens outside the model's table
  Strings texts_;                                   // TokenBytes
  Strings spellings_;                               // empty unless the decoder uses token places
  std::vector<bool> is_special_;                    // by id
  bool adds_leading_space_;
};

}  // namespace tandem::engine
