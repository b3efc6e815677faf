#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/bpe_tokenizer.h"
#include "engine/tokenizer/json_value.h"

namespace tandem::engine {

// How token spellings become text again, where they are characters and not bytes.
struct SpellingRules {
  std::vector<ReplaceText> replacements;
  bool byte_fallback = false;  // <0x41> is the byte 0x41
};

// Checks the vocabulary, merges and added tokens of a tokenizer's files and makes the model of
// them. Every method throws kDataLoss naming the file and the field at fault. Memory stays in
// proportion to the files: ids are below 2^24 and leave at most kMostHoles unused.
class BpeBuilder {
 public:
  static constexpr int64_t kMostHoles = 1 << 20;

  // `vocab` maps spellings to ids; `field` is its path in `file`.
  BpeBuilder(std::string file, bool byte_level, JsonValue vocab, const std::string& field);

  void SetMerges(size_t count) { merges_ = PairTable(count); }
  // Rules come by rank; `field` names the rule in messages.
  void AddMerge(std::string_view left, std::string_view right, const std::string& field);
  // The same, of "left right".
  void AddMerge(std::string_view line, const std::string& field);
  void AddAddedToken(AddedToken token, const std::string& field);

  // By the vocabulary's spelling.
  std::optional<TokenId> Find(std::string_view spelling) const;
  const std::vector<AddedToken>& added_tokens() const { return added_tokens_; }

  std::vector<std::string> Texts(const SpellingRules& rules) const;  // by id
  BpeModel BuildModel(BpeOptions options) &&;

 private:
  std::string file_;
  bool byte_level_;
  TokenTable tokens_;  // by bytes, or by spelling
  PairTable merges_{0};
  uint32_t next_rank_ = 0;
  // Byte-level spellings with characters that stand for no byte: they can be decoded, not reached.
  std::unordered_map<std::string, TokenId> unreachable_;
  std::vector<AddedToken> added_tokens_;
  TokenId vocab_size_ = 0;
};

}  // namespace tandem::engine
