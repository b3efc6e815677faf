#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/wire/utf8.h"

namespace tandem::engine {
class Tokenizer;
}

namespace tandem::server {

// How tokens are named in answers: by their text, or `token_id:123` when asked for, or when the
// model has no tokenizer. Bytes that are not UTF-8 by themselves are written `bytes:\xe2\x80`, as
// OpenAI does, so that two such tokens stay two.
struct TokenNames {
  std::shared_ptr<const engine::Tokenizer> tokenizer;  // may be null
  bool as_ids = false;
  bool skip_special = true;                 // control tokens add no text
  std::vector<TokenId> shown_special = {};  // but for these

  // REQUIRES: there is a tokenizer.
  bool AddsText(TokenId id) const;
  std::string Name(TokenId id) const;
};

// -inf has no JSON form and is written -9999.0.
double JsonLogprob(float logprob);

// One entry of chat's `logprobs.content` (CONTRACT §8.5). `bytes` is null for tokens that add no
// text, so that the bytes of all entries spell the text.
void AppendChatLogprob(std::string& out, const engine::TokenLogprob& token, int top_logprobs,
                       const TokenNames& names);

// The `prompt_logprobs` array: first null, then objects id -> {logprob, rank, decoded_token}.
void AppendPromptLogprobs(std::string& out, std::span<const engine::TokenLogprob> tokens,
                          int prompt_logprobs, const TokenNames& names);

// The `logprobs` object of a completion: arrays of equal length. Offsets count Unicode characters
// of the choice's text as it is answered: a token that is part of a character stands where the
// character does, and tokens that add no text (skipped control tokens) count none.
class CompletionLogprobs {
 public:
  CompletionLogprobs(TokenNames names, int top_logprobs);

  // `has_logprob` is false for the first prompt token, which nothing predicts.
  void Add(const engine::TokenLogprob& token, bool has_logprob);
  // The prompt ends here, echoed or not: it and what is generated are decoded each on its own.
  // `continues_text` as in engine::GenerationRequest.
  void EndPrompt(bool continues_text);
  bool empty() const { return tokens_.empty(); }
  // Appends what was added since the last call.
  void TakeInto(std::string& out);

 private:
  std::string_view TextOf(TokenId token);
  void AppendTop(const engine::TokenLogprob& token, const std::string& name);

  TokenNames names_;
  int top_logprobs_;
  bool at_start_ = true;
  CharacterCounter offset_;
  // The elements of the four arrays, as JSON with commas.
  std::string tokens_;
  std::string logprobs_;
  std::string tops_;
  std::string offsets_;
};

}  // namespace tandem::server
