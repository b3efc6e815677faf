#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {

// A tokenizer of a given list of tokens; it never encodes.
class ListedTokens : public Tokenizer {
 public:
  explicit ListedTokens(std::vector<std::string> tokens, std::set<TokenId> special = {})
      : tokens_(std::move(tokens)), special_(std::move(special)) {}

  std::vector<TokenId> EncodeMixed(std::string_view, std::span<const TextRange>) const override {
    return {};
  }
  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  std::string_view TokenBytes(TokenId id) const override {
    return tokens_[static_cast<size_t>(id)];
  }
  bool IsSpecial(TokenId id) const override { return special_.contains(id); }
  std::optional<TokenId> FindToken(std::string_view) const override { return std::nullopt; }

 private:
  std::vector<std::string> tokens_;
  std::set<TokenId> special_;
};

// One token for every byte; the id is the byte.
inline std::vector<std::string> ByteTokens() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  return tokens;
}

}  // namespace tandem::engine
