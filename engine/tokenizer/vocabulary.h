#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/files/json_value.h"
#include "engine/tokenizer/models/token_table.h"

namespace tandem::engine {

// The tokens of a tokenizer's files during reading and checking. Every method throws kDataLoss
// naming the file and the field at fault. Memory stays proportional to the files: ids are below
// 2^24 and leave at most kMostHoles unused.
class Vocabulary {
 public:
  static constexpr int64_t kMostHoles = 1 << 20;
  static constexpr int64_t kMostTokens = 1 << 24;

  // Reads an object that maps spellings to ids; `field` is its path in `file`. With byte_level,
  // spellings stand for bytes (AppendByteSpelling).
  static Vocabulary FromObject(std::string file, bool byte_level, JsonValue vocab,
                               const std::string& field);
  // An empty vocabulary with ids in [0, id_limit).
  Vocabulary(std::string file, bool byte_level, size_t id_limit);

  // Adds a token as text or bytes. Returns false when the string or the id is taken.
  bool Add(std::string_view token, TokenId id) { return tokens_.Insert(token, id); }
  // Adds a token that no text becomes. It has a spelling and can be decoded.
  bool AddUnreachable(std::string_view spelling, TokenId id);
  void AddAddedToken(AddedToken token, const std::string& field);

  const std::string& file() const { return file_; }
  bool byte_level() const { return byte_level_; }
  const TokenTable& tokens() const { return tokens_; }
  const std::vector<AddedToken>& added_tokens() const { return added_tokens_; }
  const std::unordered_map<std::string, TokenId>& unreachable() const { return unreachable_; }
  std::optional<TokenId> Find(std::string_view spelling) const;  // as spelled in the file
  // Ids of tokens that plain text must not become.
  std::vector<TokenId> control_ids() const;
  // The token of each byte, spelled as the byte or as <0x41>; -1 when there is none.
  std::array<TokenId, 256> ByteTokens() const;
  // Spellings by id, added tokens included; empty when there is no token.
  std::vector<std::string> Spellings() const;

 private:
  std::string file_;
  bool byte_level_;
  TokenTable tokens_;  // by bytes, or by spelling
  std::unordered_map<std::string, TokenId> unreachable_;
  std::vector<AddedToken> added_tokens_;
  TokenId vocab_size_ = 0;
};

// The merge rules of a BPE model during reading, in the order of rank.
class MergeRules {
 public:
  // `prefix`: prefix of characters that continue a piece; a merge removes it.
  MergeRules(const Vocabulary& vocabulary, size_t count, std::string prefix = {})
      : vocabulary_(&vocabulary), prefix_(std::move(prefix)), merges_(count) {}

  // `field` names the rule in messages.
  void Add(std::string_view left, std::string_view right, const std::string& field);
  void Add(std::string_view line, const std::string& field);  // line: "left right"
  PairTable Take() && { return std::move(merges_); }

 private:
  const Vocabulary* vocabulary_;
  std::string prefix_;
  PairTable merges_;
  uint32_t next_rank_ = 0;
};

// Merge rules for files that only rank tokens: any two tokens merge whose strings together spell a
// token. `ranked`: tokens and their ranks; equal ranks are allowed. REQUIRES: each token has at
// most kLongestRanked bytes.
constexpr size_t kLongestRanked = 1024;
PairTable MergesByRank(const TokenTable& tokens,
                       const std::vector<std::pair<TokenId, uint32_t>>& ranked);

}  // namespace tandem::engine
