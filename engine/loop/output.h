#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/api/generation.h"
#include "engine/api/loaded_model.h"
#include "engine/api/stats.h"
#include "engine/base/ids.h"
#include "engine/loop/stop_matcher.h"
#include "engine/tokenizer/incremental_detokenizer.h"

namespace tandem::engine {

// Turns the sampled tokens of one choice into text deltas, and decides when the choice ends. Text
// that may become part of a stop string is held back, and with it the tokens it came from, all of
// their text included: what a delta's tokens spell is the delta's text. Without
// a tokenizer there are tokens only. Engine thread only.
class ChoiceOutput {
 public:
  struct Options {
    int choice = 0;
    StopSpec stop;
    int64_t max_new_tokens = 0;       // the request's, within what the context leaves
    std::vector<TokenId> end_tokens;  // the model's; empty when the request ignores them
    const Tokenizer* tokenizer = nullptr;
    bool skip_special_tokens = true;
    std::vector<TokenId> shown_special_tokens;  // are text all the same
    bool continues_text = false;                // see GenerationRequest
    bool with_logprobs = false;
  };
  explicit ChoiceOutput(Options options);

  struct End {
    ChoiceFinished::Reason reason = ChoiceFinished::Reason::kStop;
    std::string stop_string = {};
    std::optional<TokenId> stop_token = {};
  };
  // Takes the next token (`logprob` counts when logprobs are asked for). Set when the choice is
  // over: then nothing is held back any more.
  std::optional<End> Push(TokenId token, TokenLogprob logprob);

  // What may be shown and was not yet; nothing when that is empty.
  std::optional<TextDelta> TakeDelta();

  // Tokens that may not be drawn now: those that would end the choice before its minimum.
  std::span<const TokenId> banned_tokens() const;
  int64_t n_tokens() const { return n_tokens_; }

 private:
  struct Waiting {
    TokenId token;
    TokenLogprob logprob;
    int64_t text_end;  // of its text, as an offset in the choice's
    bool unfinished;   // has begun a character that a later token makes whole
  };

  bool EndsAt(TokenId token) const;
  bool AddsText(TokenId token) const;
  // Appends text, looking for stop strings; the index of the one that was found.
  std::optional<size_t> Feed(const std::string& piece);

  const Options options_;
  std::vector<TokenId> enders_;  // end tokens and stop tokens
  std::optional<IncrementalDetokenizer> detokenizer_;
  StopMatcher matcher_;
  int64_t n_tokens_ = 0;

  // Text not shown yet begins at offset shown_ of the choice's text; its last `held_` bytes wait.
  std::string text_;
  int64_t shown_ = 0;
  size_t held_ = 0;
  std::vector<Waiting> waiting_;
  bool ended_ = false;
};

}  // namespace tandem::engine
