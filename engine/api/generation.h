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

#include "engine/base/error.h"
#include "engine/base/ids.h"
#include "engine/sampling/sampling_params.h"

namespace tandem::engine {

class Adapter;

struct StopSpec {
  int64_t max_new_tokens = 16;       // may be 0 (scoring the prompt)
  int64_t min_new_tokens = 0;        // end tokens and stop strings are ignored before
  std::vector<std::string> strings;  // bytes of generated text that end it
  std::vector<TokenId> token_ids;    // end it like an end token
  bool ignore_end_tokens = false;
  bool include_stop_string = false;  // the stop string stays in the text
};

struct GenerationRequest {
  std::vector<TokenId> prompt;  // not empty; ids in range; shorter than max_model_len
  SamplingParams sampling;
  StopSpec stop;
  int n = 1;                 // choices; choice i draws from (seed, i)
  int top_logprobs = -1;     // -1: none; k: each token with its k best alternatives
  int prompt_logprobs = -1;  // the same for prompt positions; skips the prefix-cache look-up
  bool skip_special_tokens = true;
  std::vector<TokenId> shown_special_tokens;  // are text all the same
  // The answer goes on with the prompt's text, so a space it begins with is text even where the
  // tokenizer begins every text with one.
  bool continues_text = false;
  int priority = 0;  // lower first, among requests of one client
  // What the base model is adapted with, from the first token of the prompt on; null: nothing. The
  // request holds it as long as it runs. REQUIRES: opened for this engine's model.
  std::shared_ptr<const Adapter> adapter = {};
  std::string adapter_name = {};  // what EngineStats calls it
  uint64_t client = 0;            // whose it is: clients take turns
  uint64_t prefix_tenant = 0;     // cached prefixes are shared within one tenant only
  std::optional<std::chrono::steady_clock::time_point> deadline;
  std::optional<std::chrono::steady_clock::time_point> queue_deadline;  // to have a place by
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

// Sent once before the first TextDelta when prompt_logprobs >= 0: entry i is prompt[i] given
// prompt[0..i); entry 0 has no prediction (token only).
struct PromptScores {
  std::vector<TokenLogprob> tokens;
};

struct TextDelta {
  int choice = 0;
  std::string text;                    // valid UTF-8; possible stop strings are held back
  std::vector<TokenId> token_ids;      // the tokens of this delta, end token included
  std::vector<TokenLogprob> logprobs;  // beside token_ids when asked for
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;  // of this choice, end token included
};

struct ChoiceFinished {
  enum class Reason { kStop, kLength };
  int choice = 0;
  Reason reason = Reason::kStop;
  std::string stop_string = {};            // the one that matched, if any
  std::optional<TokenId> stop_token = {};  // the end or stop token that matched, if any
  Usage usage;
};

// Where a request's time went, in seconds. What it did not come to is 0.
struct RequestTimings {
  double queue_s = 0;          // from arrival to a place in the batch
  double prefill_s = 0;        // from there to the first token
  double decode_s = 0;         // from there to the last token
  double time_to_first_s = 0;  // from arrival to the first token
  double e2e_s = 0;            // from arrival to the end
};

// Terminal: exactly one per request, after it nothing.
struct RequestFinished {
  enum class Outcome { kCompleted, kCancelled, kFailed };
  Outcome outcome = Outcome::kCompleted;
  ErrorCode code = ErrorCode::kInternal;  // of kFailed
  std::string message = {};               // of kFailed
  std::string reason = {};                // of kFailed: as Error::reason(); empty: the code's own
  RequestTimings timings = {};
};

using GenerationEvent = std::variant<PromptScores, TextDelta, ChoiceFinished, RequestFinished>;

// Called on the engine thread; must not block and must not call the engine except Cancel/Pause.
using EventSink = std::function<void(RequestId, GenerationEvent)>;

}  // namespace tandem::engine
