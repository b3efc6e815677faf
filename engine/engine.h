#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/ids.h"
#include "engine/options.h"
#include "engine/sampling/sampling_params.h"

namespace tandem::engine {

class ChatTemplate;
class Model;
class ModelDir;
class Tokenizer;

// Of this program, as in "0.1.0".
std::string_view ProgramVersion();

// Everything of a model directory that serving needs. Immutable; shared.
struct LoadedModel {
  std::shared_ptr<const Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;         // null: token ids only
  std::shared_ptr<const ChatTemplate> chat_template;  // null: no chat without --chat-template
  std::string chat_template_error;  // why the model's own template is not used; else empty
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::string bos_text;  // as templates want them
  std::string eos_text;
  bool add_bos = false;  // plain-string prompts begin with BOS
  std::vector<TokenId>
      end_tokens;  // generation stops at these (config.json, generation_config.json)
  SamplingParams default_sampling;  // generation_config.json
  std::string weights_dtype;        // compute dtype: "f32" or "bf16"
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;  // the smaller of the model's and the option's
  std::string fingerprint;    // changes with weights, build or numeric settings
  int64_t weight_bytes = 0;
};

// `chat_template_override`: text of a Jinja template to use instead of the model's; empty: none.
// Throws Error naming file and field. Packs weights with all usable cores.
LoadedModel OpenModel(const ModelDir& dir, const EngineOptions& options,
                      const std::string& chat_template_override);

// ---- What a request is

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
  int priority = 0;  // lower first, then first come first served
  std::optional<std::chrono::steady_clock::time_point> deadline;
};

// ---- What comes back. Events of one request arrive in order, on the engine thread.

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

// Terminal: exactly one per request, after it nothing.
struct RequestFinished {
  enum class Outcome { kCompleted, kCancelled, kFailed };
  Outcome outcome = Outcome::kCompleted;
  ErrorCode code = ErrorCode::kInternal;  // of kFailed
  std::string message = {};               // of kFailed
};

using GenerationEvent = std::variant<PromptScores, TextDelta, ChoiceFinished, RequestFinished>;

// Called on the engine thread; must not block and must not call the engine except Cancel/Pause.
using EventSink = std::function<void(RequestId, GenerationEvent)>;

struct EngineStats {
  int64_t requests_running = 0;  // sequences in the batch
  int64_t requests_waiting = 0;
  int64_t kv_blocks_total = 0;
  int64_t kv_blocks_used = 0;  // with references
  int64_t prompt_tokens_total = 0;
  int64_t generation_tokens_total = 0;
  int64_t prefix_query_tokens_total = 0;
  int64_t prefix_hit_tokens_total = 0;
  int64_t preemptions_total = 0;
  int64_t steps_total = 0;
  double seconds_since_heartbeat = 0;  // the loop beats at least every second, idle or not
};

// One model being served: scheduler, KV cache and the engine thread that owns them. Methods are
// safe from any thread. The destructor cancels what is left and joins the thread.
class Engine {
 public:
  Engine(LoadedModel model, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const LoadedModel& loaded() const;

  // Queues the request; `sink` gets its events, ending in one RequestFinished. Throws kUnavailable
  // (reason server_overloaded) when the queue is full, kInvalidArgument for an unusable request
  // (empty prompt, id out of range, prompt too long: reason context_length_exceeded).
  RequestId Submit(GenerationRequest request, EventSink sink);
  // The same for the prompts of one caller, all or none. They count as one towards a full queue: a
  // list longer than the queue must not be refused forever. `sinks` stands beside `requests`.
  std::vector<RequestId> SubmitAll(std::vector<GenerationRequest> requests,
                                   std::vector<EventSink> sinks);
  // Idempotent; takes effect before the next step. The sink still gets its RequestFinished.
  void Cancel(RequestId request);
  // A paused request yields its batch place until resumed (a slow reader). Idempotent.
  void SetPaused(RequestId request, bool paused);

  EngineStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::engine
