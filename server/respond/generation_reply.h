#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/http/response_writer.h"
#include "server/respond/reasoning_splitter.h"

namespace tandem::engine {
class Tokenizer;
}

namespace tandem::server {

// All that the answer to one generation request depends on besides the events.
struct ReplyShape {
  enum class Kind { kChat, kCompletion };
  struct PromptShape {
    std::vector<TokenId> ids;
    std::string text;  // what `echo` repeats
  };

  Kind kind = Kind::kChat;
  std::string id;  // "chatcmpl-…", "cmpl-…"
  int64_t created = 0;
  std::string model;
  std::string fingerprint;
  std::string request_id;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  int n = 1;              // choices per prompt in the answer
  int n_candidates = 1;   // choices per prompt that are generated; the best n are answered
  int top_logprobs = -1;  // -1: no logprobs
  std::optional<int> prompt_logprobs;
  bool echo = false;
  bool skip_special_tokens = true;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  std::optional<ReasoningSplitter::State> reasoning;  // set: thoughts are answered apart
  std::vector<TokenId> end_tokens;                    // in effect: what ends a choice
  std::vector<TokenId> asked_end_tokens;              // of these, the request's own stop_token_ids
  std::vector<PromptShape> prompts;
  std::shared_ptr<const engine::Tokenizer> tokenizer;  // may be null
  std::shared_ptr<const void> keeps_alive;  // held until the last event: the model's lease
};

// Turns the events of one HTTP request (one engine request per prompt) into one JSON body or an
// event stream. Sinks are called on the engine thread and only queue; everything else happens on
// the connection's strand, so no state here needs a lock but the queue.
class GenerationReply : public std::enable_shared_from_this<GenerationReply> {
 public:
  // `cancel_rest` ends what still runs when one prompt has failed.
  static std::shared_ptr<GenerationReply> Create(ReplyShape shape, ResponseWriter writer);
  ~GenerationReply();
  GenerationReply(const GenerationReply&) = delete;
  GenerationReply& operator=(const GenerationReply&) = delete;

  // For Engine::Submit of prompt `prompt_idx`. The sink keeps the reply alive.
  engine::EventSink Sink(size_t prompt_idx);

  // Called once every prompt has been admitted: from now on events are answered. Before it, nothing
  // is sent, so a refusal still has its own status. `cancel` and `set_paused` reach the requests.
  void Begin(std::function<void()> cancel, std::function<void(bool paused)> set_paused);

 private:
  GenerationReply(ReplyShape shape, ResponseWriter writer);

  void Queue(size_t prompt_idx, engine::GenerationEvent event);
  void Drain();

  class Renderer;
  const ResponseWriter writer_;
  std::unique_ptr<Renderer> renderer_;

  std::mutex mutex_;  // guards the rest
  bool begun_ = false;
  std::vector<std::pair<size_t, engine::GenerationEvent>> events_;
};

// A new id with the prefix ("chatcmpl-"), unique with overwhelming probability.
std::string NewObjectId(const std::string& prefix);

}  // namespace tandem::server
