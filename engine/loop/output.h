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

// Turns the sampled tokens of one choice into text deltas, and decides when the choice ends. Holds
// back text that may become part of a stop string, together with its tokens. The tokens of a delta
// always spell exactly the delta's text. Without a tokenizer there are tokens only. Engine thread
// only.
class ChoiceOutput {
 public:
  struct Options {
    int choice = 0;
    StopSpec stop;                    // max_new_tokens is bounded by the context
    std::vector<TokenId> end_tokens;  // the model's; empty when the request ignores them
    const Tokenizer* tokenizer = nullptr;
    bool skip_special_tokens = true;
    std::vector<TokenId> shown_special_tokens;  // text although special tokens are skipped
    bool continues_text = false;                // see GenerationRequest
    bool with_logprobs = false;
    std::optional<ThoughtLimit> thought_limit;
  };
  explicit ChoiceOutput(Options options);

  struct End {
    ChoiceFinished::Reason reason = ChoiceFinished::Reason::kStop;
    std::string stop_string = {};
    std::optional<TokenId> stop_token = {};
  };
  // Takes the next token; `logprob` is used only with_logprobs. Returns a value when the choice is
  // over; nothing is held back after that.
  // `is_complete`: the choice ends with this token, with kStop, because nothing can follow it.
  std::optional<End> Push(TokenId token, TokenLogprob logprob, bool is_complete = false);
  // Ends the choice without a further token, because nothing can follow. As Push with a value.
  End Complete();

  // The text and tokens that may be sent now; nullopt when there are none.
  std::optional<TextDelta> TakeDelta();

  // Tokens that may not be drawn now, because they would end the choice before its minimum.
  std::span<const TokenId> banned_tokens() const;
  // The token that follows, if nothing forbids it, because the thought has reached its limit; -1:
  // none.
  TokenId forced_token() const;
  int64_t n_tokens() const { return n_tokens_; }

 private:
  struct Waiting {
    TokenId token;
    TokenLogprob logprob;
    int64_t text_end;  // end of its text, as an offset in the choice's text
    bool unfinished;   // begins a character that a later token completes
  };

  bool EndsAt(TokenId token) const;
  bool AddsText(TokenId token) const;
  void CountThought(TokenId token);
  // Appends text and looks for stop strings; returns the index of the one found.
  std::optional<size_t> Feed(const std::string& piece);

  const Options options_;
  std::vector<TokenId> enders_;  // end tokens and stop tokens
  std::optional<IncrementalDetokenizer> detokenizer_;
  StopMatcher matcher_;
  int64_t n_tokens_ = 0;
  bool is_thinking_ = false;
  int64_t n_thought_tokens_ = 0;

  // Unsent text begins at offset shown_ of the choice's text; its last `held_` bytes are held back.
  std::string text_;
  int64_t shown_ = 0;
  size_t held_ = 0;
  std::vector<Waiting> waiting_;
  bool ended_ = false;
};

}  // namespace tandem::engine
