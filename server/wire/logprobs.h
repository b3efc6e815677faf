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

// Names tokens in answers: by text, or as `token_id:123` on request or without a tokenizer. A token
// with invalid UTF-8 becomes `bytes:\xe2\x80`, as in OpenAI's API, so that two such tokens stay
// distinct.
struct TokenNames {
  std::shared_ptr<const engine::Tokenizer> tokenizer;  // may be null
  bool as_ids = false;
  bool skip_special = true;                 // control tokens add no text
  std::vector<TokenId> shown_special = {};  // exceptions to skip_special

  // REQUIRES: tokenizer is not null.
  bool AddsText(TokenId id) const;
  std::string Name(TokenId id) const;
};

// Writes -inf, which JSON cannot express, as -9999.0.
double JsonLogprob(float logprob);

// Appends one entry of chat's `logprobs.content`. `bytes` is null for tokens without text, so that
// the bytes of all entries spell the text.
void AppendChatLogprob(std::string& out, const engine::TokenLogprob& token, int top_logprobs,
                       const TokenNames& names);

// Appends the `prompt_logprobs` array: first null, then objects id -> {logprob, rank,
// decoded_token}.
void AppendPromptLogprobs(std::string& out, std::span<const engine::TokenLogprob> tokens,
                          int prompt_logprobs, const TokenNames& names);

// The `logprobs` object of a completion: arrays of equal length. Offsets count Unicode characters
// of the choice's text. A token inside a character has that character's offset; tokens without text
// (skipped control tokens) advance nothing.
class CompletionLogprobs {
 public:
  CompletionLogprobs(TokenNames names, int top_logprobs);

  // `has_logprob` is false for the first prompt token, which has no prediction.
  void Add(const engine::TokenLogprob& token, bool has_logprob);
  // Marks the end of the prompt, echoed or not: prompt and generated text are decoded separately.
  // engine::GenerationRequest describes `continues_text`.
  void EndPrompt(bool continues_text);
  bool empty() const { return tokens_.empty(); }
  // Appends the entries added since the last call.
  void TakeInto(std::string& out);

 private:
  std::string_view TextOf(TokenId token);
  void AppendTop(const engine::TokenLogprob& token, const std::string& name);

  TokenNames names_;
  int top_logprobs_;
  bool at_start_ = true;
  CharacterCounter offset_;
  // Elements of the four arrays, as JSON with commas.
  std::string tokens_;
  std::string logprobs_;
  std::string tops_;
  std::string offsets_;
};

}  // namespace tandem::server
