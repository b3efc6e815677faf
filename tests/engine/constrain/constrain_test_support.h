#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/constrain/grammar.h"
#include "tests/support/listed_tokens.h"

namespace tandem::engine {

// A vocabulary whose last token is the end token.
struct Vocabulary {
  explicit Vocabulary(std::vector<std::string> texts) : tokens(std::move(texts)) {
    tokens.push_back("<end>");
    end = static_cast<TokenId>(tokens.size()) - 1;
    compiler = std::make_unique<GrammarCompiler>(
        std::make_shared<ListedTokens>(tokens, std::set<TokenId>{end}), std::vector<TokenId>{end},
        size());
  }
  int64_t size() const { return static_cast<int64_t>(tokens.size()); }

  std::vector<std::string> tokens;
  TokenId end = 0;
  std::unique_ptr<GrammarCompiler> compiler;
};

// All bytes, and some longer tokens.
inline Vocabulary ByteVocabulary() {
  std::vector<std::string> tokens = ByteTokens();
  for (const char* more :
       {"{\"", "\":", "\",\"", "true", "false", "null", "ab", "a ", "12", "[["}) {
    tokens.emplace_back(more);
  }
  return Vocabulary(std::move(tokens));
}

// Draws allowed tokens at random; nullopt if the text is not complete after `max_tokens`.
inline std::optional<std::string> RandomText(const Vocabulary& vocabulary, const Grammar& grammar,
                                             std::mt19937& random, int max_tokens = 400) {
  GrammarMatcher matcher = grammar.NewMatcher();
  std::vector<uint32_t> mask(MaskWords(vocabulary.size()));
  std::string text;
  for (int i = 0; i < max_tokens; ++i) {
    if (!matcher.Mask(mask)) return text;
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < vocabulary.size(); ++id) {
      if (IsAllowed(mask, id)) allowed.push_back(id);
    }
    if (allowed.empty()) return std::nullopt;
    // An aimless walk through strings would seldom end.
    const bool may_end = IsAllowed(mask, '"') && i > 30;
    const TokenId token = may_end ? '"' : allowed[random() % allowed.size()];
    const bool is_complete = matcher.Commit(token);
    if (token != vocabulary.end) text += vocabulary.tokens[static_cast<size_t>(token)];
    if (is_complete) return text;
  }
  return std::nullopt;
}

#define TANDEM_NEED_LLGUIDANCE()          \
  if (LlguidanceVersion().empty()) {      \
    GTEST_SKIP() << "built without Rust"; \
  }

}  // namespace tandem::engine
