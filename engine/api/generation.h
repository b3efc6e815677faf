#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/api/pooling.h"
#include "engine/api/work_class.h"
#include "engine/base/error.h"
#include "engine/base/ids.h"
#include "engine/sampling/sampling_params.h"

namespace tandem::engine {

class Adapter;
class Grammar;

struct StopSpec {
  int64_t max_new_tokens = 16;       // may be 0 (scoring the prompt)
  int64_t min_new_tokens = 0;        // end tokens and stop strings before it are ignored
  std::vector<std::string> strings;  // bytes of generated text that end the choice
  std::vector<TokenId> token_ids;    // end it like an end token
  bool ignore_end_tokens = false;
  bool include_stop_string = false;  // the stop string stays in the text
};

// Bounds a thought: an answer's text between two marks that are single tokens.
struct ThoughtLimit {
  TokenId open = -1;       // -1: none; only a thought that the prompt has opened is bounded
  TokenId close = 0;       // follows at the limit
  int64_t max_tokens = 0;  // of one choice, without the marks
  bool is_open = false;    // the prompt ends within the thought
};

struct GenerationRequest {
  // Not empty; ids in range; shorter than max_model_len. With `pooling`, it may be as long.
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  StopSpec stop;
  int n = 1;                 // choices; choice i draws from (seed, i)
  int top_logprobs = -1;     // -1: none; k: each token and its k best alternatives
  int prompt_logprobs = -1;  // same for prompt positions; skips the prefix-cache look-up
  // Set: the request generates nothing; it answers with one Embedding of its prompt. REQUIRES: n is
  // 1, max_new_tokens is 0, and no log-probabilities are requested.
  std::optional<Pooling> pooling = {};
  // Not empty: the request generates nothing; it answers with the log-probabilities of these tokens
  // after its prompt (NextTokenScores). REQUIRES: as for `pooling`, which is unset.
  std::vector<TokenId> next_tokens = {};
  // How many first tokens of the prompt other prompts probably share, such as the instructions of a
  // chat; 0: unknown. It changes the speed only: models with recurrent layers keep their state
  // there.
  int64_t shared_tokens = 0;
  // A guess of the whole answer. It changes the speed only, and only with draft_rows.
  std::vector<TokenId> prediction = {};
  bool skip_special_tokens = true;
  std::vector<TokenId> shown_special_tokens;  // text although special tokens are skipped
  // The answer continues the prompt's text. A leading space is then text even if the tokenizer
  // begins every text with one.
  bool continues_text = false;
  int priority = 0;  // lower runs first, among requests of one client and class
  WorkClass work_class = WorkClass::kInteractive;  // batch requests give way to interactive ones
  // The adapter of the base model, from the first token of the prompt on; null: none. The request
  // holds it until it ends. REQUIRES: opened for this engine's model.
  std::shared_ptr<const Adapter> adapter = {};
  std::string adapter_name = {};  // its name in EngineStats
  // Every choice's text is of this grammar, compiled for this engine's model. Null: any text. A
  // choice ends (kStop) as soon as its text is complete and nothing can follow; end tokens are
  // drawn only after a complete text.
  std::shared_ptr<const Grammar> grammar = {};
  // Where a grammar does not allow the closing mark, the thought goes on until it does.
  std::optional<ThoughtLimit> thought_limit = {};
  uint64_t client = 0;         // clients take turns
  uint64_t prefix_tenant = 0;  // cached prefixes are shared within one tenant only
  std::optional<std::chrono::steady_clock::time_point> deadline;
  std::optional<std::chrono::steady_clock::time_point> queue_deadline;  // latest start
  std::optional<std::chrono::steady_clock::time_point> arrival;  // for timings; unset: Submit
};

// Events of one request arrive in order, on the engine thread.

// Raw log-softmax of the logits, before bias, penalties and temperature.
struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
  int64_t rank = 0;                                 // 1 = most likely
  std::vector<std::pair<TokenId, float>> top = {};  // best first
};

// Sent once, before the first TextDelta, when prompt_logprobs >= 0. Entry i is prompt[i] given
// prompt[0..i); entry 0 has no prediction (token only).
struct PromptScores {
  std::vector<TokenLogprob> tokens;
};

// Sent once, before ChoiceFinished, by a request with `pooling`: the mean of the pooled positions'
// final hidden states, not normalised. Finite. Its bits depend on the prompt alone.
struct Embedding {
  std::vector<float> values;  // [hidden_dim]
};

// Sent once, before ChoiceFinished, by a request with `next_tokens`: one entry for each, in order.
struct NextTokenScores {
  std::vector<TokenLogprob> tokens;
};

struct TextDelta {
  int choice = 0;
  std::string text;                    // valid UTF-8; possible stop strings are held back
  std::vector<TokenId> token_ids;      // the tokens of this delta, end token included
  std::vector<TokenLogprob> logprobs;  // one per token_id when requested
  // Ends of the text of control tokens, as offsets in `text`, ascending. A mark that a model writes
  // as a control token differs from the same letters in this alone.
  std::vector<size_t> token_ends = {};
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;      // of this choice, end token included
  int64_t accepted_draft_tokens = 0;  // of completion_tokens: guessed before (engine/speculation)
  int64_t rejected_draft_tokens = 0;  // wrong guesses that were computed
};

struct ChoiceFinished {
  enum class Reason { kStop, kLength };
  int choice = 0;
  Reason reason = Reason::kStop;
  std::string stop_string = {};            // the stop string that matched, if any
  std::optional<TokenId> stop_token = {};  // the end or stop token that matched, if any
  Usage usage;
};

// Durations of a request's phases in seconds; 0 for a phase it did not reach.
struct RequestTimings {
  double queue_s = 0;          // from arrival to a place in the batch
  double prefill_s = 0;        // from that place to the first token
  double decode_s = 0;         // from the first to the last token
  double time_to_first_s = 0;  // from arrival to the first token
  double e2e_s = 0;            // from arrival to the end
};

// Terminal: exactly one per request, and the last event.
struct RequestFinished {
  enum class Outcome { kCompleted, kCancelled, kFailed };
  Outcome outcome = Outcome::kCompleted;
  ErrorCode code = ErrorCode::kInternal;  // of kFailed
  std::string message = {};               // of kFailed
  std::string reason = {};  // of kFailed: as Error::reason(); empty: the code's default reason
  RequestTimings timings = {};
};

using GenerationEvent = std::variant<PromptScores, Embedding, NextTokenScores, TextDelta,
                                     ChoiceFinished, RequestFinished>;

// Called on the engine thread; must not block and must not call the engine except Cancel/Pause.
using EventSink = std::function<void(RequestId, GenerationEvent)>;

}  // namespace tandem::engine
