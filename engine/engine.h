#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/histogram.h"
#include "engine/base/ids.h"
#include "engine/base/memory_ledger.h"
#include "engine/options.h"
#include "engine/sampling/sampling_params.h"

namespace tandem::engine {

class Adapter;
class ChatTemplate;
class LoopStatus;
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
  std::string format;               // ModelDir::format
  std::string weights_dtype;        // "f32", "bf16", "int8" or "int4"
  std::string kv_dtype;             // the compute dtype: "f32" or "bf16"
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;  // the smaller of the model's and the option's
  std::string fingerprint;    // changes with weights, build or numeric settings
  int64_t weight_bytes = 0;
  bool weights_mapped = false;  // a file that other processes share
};

// What serving a model takes, told by its config and tensor headers alone.
struct MemoryPlan {
  MemoryClaim least;    // with keys and values of one sequence of max_model_len tokens
  int64_t most_kv = 0;  // for max_seqs such sequences
  int64_t max_model_len = 0;
  std::string format;  // as LoadedModel's, both
  std::string weights_dtype;
};
// Throws what OpenModel throws for the same faults. `kv_cache_bytes` of the options, where given,
// is both the least and the most; `memory_bytes` plays no part.
MemoryPlan PlanMemory(const ModelDir& dir, const EngineOptions& options);

// 80 % of what this process may use: the smaller of available memory and what the cgroup leaves.
int64_t DefaultMemoryBudgetBytes();

// `chat_template_override`: text of a Jinja template to use instead of the model's; empty: none.
// Throws Error naming file and field. Packs weights with `options.threads` threads of its own, in
// the scheduling class of the caller. `progress` is called on this thread with what part is done;
// what it throws ends the loading.
LoadedModel OpenModel(const ModelDir& dir, const EngineOptions& options,
                      const std::string& chat_template_override,
                      const std::function<void(double fraction)>& progress = {});

// An adapter in a PEFT directory, for requests to this model. Throws Error naming file and field or
// tensor.
std::shared_ptr<const Adapter> OpenAdapter(const std::filesystem::path& dir,
                                           const LoadedModel& base, const EngineOptions& options);
// What that takes, told by the headers alone. Throws as OpenAdapter, but for what only the base's
// weights can tell.
MemoryClaim PlanAdapter(const std::filesystem::path& dir, const ModelDir& base,
                        const EngineOptions& options);
MemoryClaim PlanAdapter(const std::filesystem::path& dir, const LoadedModel& base);

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

struct EngineStats {
  int64_t requests_running = 0;  // sequences in the batch
  int64_t requests_waiting = 0;  // sequences without a place, and requests just handed over
  int64_t requests_queued = 0;   // requests that never had a place; max_queue bounds them
  int64_t kv_blocks_total = 0;
  int64_t kv_blocks_used = 0;  // with references
  int64_t prompt_tokens_total = 0;
  int64_t generation_tokens_total = 0;
  int64_t prefix_query_tokens_total = 0;
  int64_t prefix_hit_tokens_total = 0;
  int64_t preemptions_total = 0;
  int64_t steps_total = 0;
  int64_t idle_releases_total = 0;  // how often memory was returned (EngineOptions::idle_release)
  int64_t kv_bytes = 0;
  int64_t scratch_bytes = 0;
  int64_t max_adapters = 0;  // different ones in one batch
  // By name, of requests with a sequence in the batch, and of those without. A name may be in both.
  std::vector<std::string> running_adapters;
  std::vector<std::string> waiting_adapters;
  double requests_ended_per_second = 0;  // over the last seconds, however they ended
  // The loop beats at least every second, idle or not, and between any two steps.
  std::chrono::steady_clock::time_point heartbeat;
};

// What happened since the start, in seconds and tokens. Of requests only completed ones count.
struct EngineHistograms {
  EngineHistograms();
  void Add(const EngineHistograms& other);

  Histogram time_to_first_token_s;
  Histogram inter_token_s;
  Histogram e2e_s;
  Histogram queue_s;
  Histogram prefill_s;
  Histogram decode_s;
  Histogram inference_s;  // prefill and decode
  Histogram prompt_tokens;
  Histogram generation_tokens;  // of all choices together
  Histogram params_n;
  Histogram params_max_tokens;  // as asked for
  Histogram step_tokens;        // prompt and generated tokens of one step
};

// Reads the figures of an engine from any thread, also after its end: then they stay as they were.
class EngineFigures {
 public:
  explicit EngineFigures(std::shared_ptr<const LoopStatus> status) : status_(std::move(status)) {}

  EngineStats stats() const;
  EngineHistograms histograms() const;
  bool has_ended() const { return status_.use_count() == 1; }  // if nobody else holds figures

 private:
  std::shared_ptr<const LoopStatus> status_;
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

  // Throws kInvalidArgument for an unusable request (empty prompt, id out of range, prompt too
  // long: reason context_length_exceeded). Looks at every token.
  void Check(const GenerationRequest& request) const;
  // Checks and queues the request; `sink` gets its events, ending in one RequestFinished. Throws
  // kUnavailable (reason server_overloaded) when the queue is full.
  RequestId Submit(GenerationRequest request, EventSink sink);
  // The same for the prompts of one client, all or none. They count as one towards a full queue: a
  // list longer than the queue must not be refused forever. `sinks` stands beside `requests`. With
  // `max_waiting` the client may have only so many waiting; beyond: kResourceExhausted (reason
  // rate_limit_exceeded). Quick, however long the prompts. REQUIRES: Check has passed them all.
  std::vector<RequestId> SubmitAll(std::vector<GenerationRequest> requests,
                                   std::vector<EventSink> sinks, int64_t max_waiting = 0);
  // Idempotent; takes effect before the next step. The sink still gets its RequestFinished.
  void Cancel(RequestId request);
  // Ends everything that runs or waits, each request with one RequestFinished (kFailed,
  // kUnavailable, this message), and takes no more: Submit throws the same. For a model that is to
  // go at once.
  void EndAll(const std::string& message);
  // A paused request yields its batch place until resumed (a slow reader). Idempotent.
  void SetPaused(RequestId request, bool paused);

  EngineStats stats() const;
  EngineFigures figures() const;
  // Whether the model's weights could not be read while it ran. Then every request that was there
  // ended with kUnavailable (reason model_damaged), and Submit throws the same.
  bool has_failed() const;
  // How many requests Submit would take now; 0 when the queue is full.
  int64_t queue_room() const;
  // How many more requests of one client there is room for if it may keep `max_waiting` waiting.
  int64_t queue_room_of(uint64_t client, int64_t max_waiting) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::engine
