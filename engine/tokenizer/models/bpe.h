#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/ids.h"
#include "engine/tokenizer/models/token_model.h"
#include "engine/tokenizer/models/token_table.h"

namespace tandem::engine {

struct BpeOptions {
  // Initial symbols: bytes, or characters as spelled in the vocabulary.
  bool byte_level = true;
  // Characters outside the vocabulary become the tokens <0x00>..<0xFF> of their bytes, if it has
  // them.
  bool byte_fallback = false;
  std::optional<TokenId> unk =
      std::nullopt;            // token of all other unknown characters; nullopt: drops them
  bool fuse_unk = false;       // joins neighbouring unknown characters to one
  bool ignore_merges = false;  // a piece that is a token becomes it without merges
  // Affixes in the spelling of characters: the prefix for all but the first character of a piece,
  // the suffix for the last. Not with byte_level.
  std::string continuing_prefix = {};
  std::string word_suffix = {};
  // Symbols from this id on are characters that only merges use; alone they are unknown.
  TokenId first_bare_symbol = INT32_MAX;
};

// Byte-pair encoding of one piece of text.
class BpeModel final : public TokenModel {
 public:
  // `merges` by rank over `tokens`, whose strings are bytes or characters (BpeOptions).
  // byte_tokens[b] is the token of byte b, or -1. A piece that spells a token of `control` does not
  // become it.
  BpeModel(BpeOptions options, TokenTable tokens, PairTable merges,
           const std::array<TokenId, 256>& byte_tokens, const std::vector<TokenId>& control);

  // Reused between pieces. `steps` counts placed symbols and examined pairs, for tests of growth.
  class Scratch : public TokenModel::Scratch {
   public:
    int64_t steps = 0;

   private:
    friend class BpeModel;
    struct Symbol {
      TokenId id;  // -1: merged into its left neighbour
      uint32_t previous;
      uint32_t next;
    };
    std::vector<TokenId> initial;
    std::vector<PairTable::Merge> pairs;
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;
  };

  // Appends the tokens of a piece. Linear for pieces that are tokens or short, O(n log n) in a
  // longer piece.
  void Encode(std::string_view piece, TokenModel::Scratch& scratch,
              std::vector<TokenId>& out) const override;
  std::unique_ptr<TokenModel::Scratch> MakeScratch() const override {
    return std::make_unique<Scratch>();
  }
  bool may_cut_at_metaspace() const override { return may_cut_at_metaspace_; }
  // Whether some text yields no tokens: there is no unknown token, and some byte has no token.
  bool may_drop_text() const;

 private:
  void PlaceBytes(std::string_view piece, Scratch& scratch) const;
  void PlaceCharacters(std::string_view piece, Scratch& scratch) const;
  TokenId FindCharacter(std::string_view piece, size_t begin, size_t end,
                        std::string& spelling) const;
  bool AppendBytes(std::string_view text, std::vector<TokenId>& ids) const;
  void ReplaceBareSymbols(size_t from, std::vector<TokenId>& out) const;
  void Merge(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const;
  void MergeShort(Scratch& scratch, std::vector<TokenId>& out) const;
  void MergeLong(Scratch& scratch, std::vector<TokenId>& out) const;

  BpeOptions options_;
  PairTable merges_;
  std::array<TokenId, 256> byte_tokens_;
  std::array<TokenId, 128> ascii_tokens_;  // of one-character tokens; unused when byte_level
  bool has_affixes_;
  std::vector<bool> whole_;  // by id: merging the token's own string yields the token
  bool may_cut_at_metaspace_;
};

}  // namespace tandem::engine
