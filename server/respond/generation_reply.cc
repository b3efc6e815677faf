#include "server/respond/generation_reply.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>

#include "server/wire/error_body.h"
#include "server/wire/logprobs.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;
using engine::ChoiceFinished;
using engine::GenerationEvent;
using engine::PromptScores;
using engine::RequestFinished;
using engine::TextDelta;
using engine::TokenLogprob;

// Engine text is valid UTF-8 by contract; should it ever not be, the client still gets JSON.
std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Response ToResponse(ErrorReply reply) {
  Response response;
  response.status = reply.status;
  response.body = std::move(reply.body);
  response.headers = std::move(reply.headers);
  return response;
}

}  // namespace

std::string NewObjectId(const std::string& prefix) {
  static constexpr std::string_view kAlphabet =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  std::string id = prefix;
  for (int i = 0; i < 24; ++i) id.push_back(kAlphabet[generator() % kAlphabet.size()]);
  return id;
}

// The state of an answer in the making; lives on the connection's strand.
class GenerationReply::Renderer {
 public:
  Renderer(ReplyShape shape, ResponseWriter writer)
      : shape_(std::move(shape)),
        writer_(std::move(writer)),
        names_{shape_.tokenizer, shape_.return_tokens_as_token_ids},
        n_open_prompts_(shape_.prompts.size()) {
    prompts_.resize(shape_.prompts.size());
    choices_.reserve(shape_.prompts.size() * static_cast<size_t>(shape_.n_candidates));
    for (size_t i = 0; i < choices_.capacity(); ++i) {
      choices_.emplace_back(names_, shape_.top_logprobs, shape_.skip_special_tokens);
    }
  }

  void Begin(std::function<void()> cancel, std::function<void(bool)> set_paused) {
    cancel_ = std::move(cancel);
    set_paused_ = std::move(set_paused);
    if (!shape_.begins_late) BeginStream();
  }

  void On(size_t prompt_idx, GenerationEvent event) {
    if (is_done_) return;
    if (!stream_ && !IsFailure(event)) BeginStream();
    std::visit([&](auto& alternative) { Handle(prompt_idx, alternative); }, event);
  }

 private:
  struct PromptState {
    std::vector<TokenLogprob> scores;
    bool has_sent_scores = false;
    int64_t cached_tokens = 0;
  };
  struct ChoiceState {
    ChoiceState(const TokenNames& names, int top_logprobs, bool skip_special)
        : completion_logprobs(names, top_logprobs, skip_special) {}

    bool has_begun = false;
    std::string text;
    std::vector<TokenId> token_ids;
    Json chat_logprobs = Json::array();
    CompletionLogprobs completion_logprobs;
    double sum_logprob = 0;
    int64_t n_tokens = 0;
    std::optional<ChoiceFinished> finished;
  };

  void BeginStream() {
    if (!shape_.stream) return;
    stream_ = writer_.StartEventStream();
    stream_->OnBackpressure(std::move(set_paused_));
  }

  static bool IsFailure(const GenerationEvent& event) {
    const auto* end = std::get_if<RequestFinished>(&event);
    return end != nullptr && end->outcome != RequestFinished::Outcome::kCompleted;
  }

  void ReportEnd(size_t prompt_idx, const RequestFinished& finished) const {
    if (!shape_.on_prompt_end) return;
    if (finished.outcome != RequestFinished::Outcome::kCompleted) {
      return shape_.on_prompt_end("error");
    }
    bool was_cut = false;
    for (int i = 0; i < shape_.n_candidates; ++i) {
      const auto& end = choices_[StateIndex(prompt_idx, i)].finished;
      was_cut = was_cut || (end && end->reason == ChoiceFinished::Reason::kLength);
    }
    shape_.on_prompt_end(was_cut ? "length" : "stop");
  }

  bool is_chat() const { return shape_.kind == ReplyShape::Kind::kChat; }
  bool has_logprobs() const { return shape_.top_logprobs >= 0; }

  size_t StateIndex(size_t prompt_idx, int choice) const {
    return prompt_idx * static_cast<size_t>(shape_.n_candidates) + static_cast<size_t>(choice);
  }

  bool IsEndToken(TokenId id) const {
    return std::find(shape_.end_tokens.begin(), shape_.end_tokens.end(), id) !=
           shape_.end_tokens.end();
  }

  void Handle(size_t prompt_idx, PromptScores& scores) {
    prompts_[prompt_idx].scores = std::move(scores.tokens);
  }

  void Handle(size_t prompt_idx, TextDelta& delta) {
    ChoiceState& choice = choices_[StateIndex(prompt_idx, delta.choice)];
    BeginChoice(prompt_idx, delta.choice, choice);
    choice.n_tokens += static_cast<int64_t>(delta.token_ids.size());
    for (const TokenLogprob& token : delta.logprobs) {
      choice.sum_logprob += static_cast<double>(token.logprob);
      // The end token has no text, so it has no entry either (CONTRACT §8.5).
      if (!has_logprobs() || IsEndToken(token.token)) continue;
      if (is_chat()) {
        choice.chat_logprobs.push_back(ChatLogprob(token, shape_.top_logprobs, names_));
      } else {
        choice.completion_logprobs.Add(token, true);
      }
    }
    if (!stream_) {
      choice.text += delta.text;
      if (shape_.return_token_ids) {
        choice.token_ids.insert(choice.token_ids.end(), delta.token_ids.begin(),
                                delta.token_ids.end());
      }
      return;
    }

    Json logprobs = TakeLogprobs(choice);
    const bool has_ids = shape_.return_token_ids && !delta.token_ids.empty();
    if (delta.text.empty() && logprobs.is_null() && !has_ids) return;
    Json out = ChunkChoice(prompt_idx, delta.choice);
    if (is_chat()) {
      out["delta"]["content"] = std::move(delta.text);
    } else {
      out["text"] = std::move(delta.text);
    }
    out["logprobs"] = std::move(logprobs);
    out["finish_reason"] = nullptr;
    if (has_ids) out["token_ids"] = delta.token_ids;
    SendChunk(std::move(out));
  }

  void Handle(size_t prompt_idx, ChoiceFinished& finished) {
    ChoiceState& choice = choices_[StateIndex(prompt_idx, finished.choice)];
    BeginChoice(prompt_idx, finished.choice, choice);
    choice.n_tokens = finished.usage.completion_tokens;
    if (finished.choice == 0) prompts_[prompt_idx].cached_tokens = finished.usage.cached_tokens;
    choice.finished = finished;
    if (!stream_) return;
    Json out = ChunkChoice(prompt_idx, finished.choice);
    if (is_chat()) {
      out["delta"] = Json::object();
    } else {
      out["text"] = "";
    }
    out["logprobs"] = nullptr;
    AddFinish(out, finished);
    SendChunk(std::move(out));
  }

  void Handle(size_t prompt_idx, RequestFinished& finished) {
    ReportEnd(prompt_idx, finished);
    if (finished.outcome == RequestFinished::Outcome::kCompleted) {
      if (--n_open_prompts_ == 0) Complete();
      return;
    }
    // One prompt of a list failed: the answer as a whole cannot be given any more.
    is_done_ = true;
    if (n_open_prompts_ > 1 && cancel_) cancel_();
    ErrorReply reply =
        finished.outcome == RequestFinished::Outcome::kCancelled
            ? MakeErrorReply(503, "shutting_down", "the request was cancelled by the server")
            : MakeErrorReply(Error(finished.code, finished.message), shape_.request_id);
    if (stream_) {
      stream_->Send(reply.body);
      stream_->Send("[DONE]");
      stream_->Close();
    } else {
      writer_.Send(ToResponse(std::move(reply)));
    }
  }

  // The first sign of a choice: chat names the role, completions repeat the prompt.
  void BeginChoice(size_t prompt_idx, int choice_idx, ChoiceState& choice) {
    if (choice.has_begun) return;
    choice.has_begun = true;
    const bool echoes = shape_.echo && !is_chat();
    if (echoes) {
      choice.text = shape_.prompts[prompt_idx].text;
      if (has_logprobs()) {
        bool is_first = true;
        for (const TokenLogprob& token : prompts_[prompt_idx].scores) {
          choice.completion_logprobs.Add(token, !is_first);
          is_first = false;
        }
      }
    }
    if (!stream_) return;
    if (!is_chat() && !echoes && !shape_.return_token_ids && !shape_.prompt_logprobs) return;

    Json out = ChunkChoice(prompt_idx, choice_idx);
    if (is_chat()) {
      out["delta"]["role"] = "assistant";
      out["delta"]["content"] = "";
    } else {
      out["text"] = choice.text;
      choice.text.clear();
    }
    out["logprobs"] = TakeLogprobs(choice);
    out["finish_reason"] = nullptr;
    if (!is_chat()) AddPromptExtras(out, prompt_idx);
    SendChunk(std::move(out), is_chat() ? std::optional<size_t>(prompt_idx) : std::nullopt);
  }

  Json TakeLogprobs(ChoiceState& choice) {
    if (!has_logprobs()) return nullptr;
    if (!is_chat()) {
      return choice.completion_logprobs.empty() ? Json() : choice.completion_logprobs.Take();
    }
    if (choice.chat_logprobs.empty()) return nullptr;
    Json out;
    out["content"] = std::exchange(choice.chat_logprobs, Json::array());
    out["refusal"] = nullptr;
    return out;
  }

  Json ChunkChoice(size_t prompt_idx, int choice) const {
    Json out;
    out["index"] = prompt_idx * static_cast<size_t>(shape_.n) + static_cast<size_t>(choice);
    return out;
  }

  void AddFinish(Json& out, const ChoiceFinished& finished) const {
    out["finish_reason"] = finished.reason == ChoiceFinished::Reason::kStop ? "stop" : "length";
    Json& reason = out["stop_reason"];
    if (!finished.stop_string.empty()) {
      reason = finished.stop_string;
    } else if (finished.stop_token &&
               std::find(shape_.asked_end_tokens.begin(), shape_.asked_end_tokens.end(),
                         *finished.stop_token) != shape_.asked_end_tokens.end()) {
      reason = *finished.stop_token;
    }
  }

  // Prompt ids and scores: once per choice in completions, once per answer in chat.
  void AddPromptExtras(Json& out, size_t prompt_idx) {
    if (shape_.return_token_ids) out["prompt_token_ids"] = shape_.prompts[prompt_idx].ids;
    if (shape_.prompt_logprobs) {
      out["prompt_logprobs"] =
          PromptLogprobs(prompts_[prompt_idx].scores, *shape_.prompt_logprobs, names_);
    }
  }

  Json Envelope(bool is_chunk) const {
    Json out;
    out["id"] = shape_.id;
    out["object"] = !is_chat() ? "text_completion"
                    : is_chunk ? "chat.completion.chunk"
                               : "chat.completion";
    out["created"] = shape_.created;
    out["model"] = shape_.model;
    out["system_fingerprint"] = shape_.fingerprint;
    return out;
  }

  void SendChunk(Json choice, std::optional<size_t> extras_of_prompt = std::nullopt) {
    Json out = Envelope(true);
    out["choices"] = Json::array();
    out["choices"].push_back(std::move(choice));
    if (extras_of_prompt && !prompts_[*extras_of_prompt].has_sent_scores) {
      prompts_[*extras_of_prompt].has_sent_scores = true;
      AddPromptExtras(out, *extras_of_prompt);
    }
    if (shape_.continuous_usage) {
      out["usage"] = UsageJson();
    } else if (shape_.include_usage) {
      out["usage"] = nullptr;
    }
    stream_->Send(Dump(out));
  }

  Json UsageJson() const {
    int64_t prompt_tokens = 0;
    int64_t cached_tokens = 0;
    int64_t completion_tokens = 0;
    for (const auto& prompt : shape_.prompts) {
      prompt_tokens += static_cast<int64_t>(prompt.ids.size());
    }
    for (const PromptState& prompt : prompts_) cached_tokens += prompt.cached_tokens;
    for (const ChoiceState& choice : choices_) completion_tokens += choice.n_tokens;
    Json out;
    out["prompt_tokens"] = prompt_tokens;
    out["completion_tokens"] = completion_tokens;
    out["total_tokens"] = prompt_tokens + completion_tokens;
    out["prompt_tokens_details"]["cached_tokens"] = cached_tokens;
    out["completion_tokens_details"]["reasoning_tokens"] = 0;
    return out;
  }

  void Complete() {
    is_done_ = true;
    if (stream_) {
      if (shape_.include_usage) {
        Json out = Envelope(true);
        out["choices"] = Json::array();
        out["usage"] = UsageJson();
        stream_->Send(Dump(out));
      }
      stream_->Send("[DONE]");
      stream_->Close();
      return;
    }

    Json body = Envelope(false);
    body["choices"] = Json::array();
    for (size_t prompt_idx = 0; prompt_idx < prompts_.size(); ++prompt_idx) {
      int rank = 0;
      for (const int candidate : BestCandidates(prompt_idx)) {
        body["choices"].push_back(BodyChoice(prompt_idx, rank++, candidate));
      }
    }
    body["usage"] = UsageJson();
    if (is_chat()) AddPromptExtras(body, 0);
    writer_.Json(200, Dump(body));
  }

  Json BodyChoice(size_t prompt_idx, int rank, int candidate) {
    ChoiceState& choice = choices_[StateIndex(prompt_idx, candidate)];
    Json out = ChunkChoice(prompt_idx, rank);
    if (is_chat()) {
      Json& message = out["message"];
      message["role"] = "assistant";
      message["content"] = std::move(choice.text);
      message["refusal"] = nullptr;
    } else {
      out["text"] = std::move(choice.text);
    }
    Json logprobs = TakeLogprobs(choice);
    if (logprobs.is_null() && has_logprobs()) {
      // No token, but the client asked: an empty list, not "off".
      if (is_chat()) {
        logprobs["content"] = Json::array();
        logprobs["refusal"] = nullptr;
      } else {
        logprobs = choice.completion_logprobs.Take();
      }
    }
    out["logprobs"] = std::move(logprobs);
    AddFinish(out, choice.finished.value_or(ChoiceFinished{}));
    if (shape_.return_token_ids) out["token_ids"] = choice.token_ids;
    if (!is_chat()) AddPromptExtras(out, prompt_idx);
    return out;
  }

  // All of them in order, or for best_of the n with the best mean log-probability.
  std::vector<int> BestCandidates(size_t prompt_idx) const {
    std::vector<int> out(static_cast<size_t>(shape_.n_candidates));
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int>(i);
    if (shape_.n_candidates == shape_.n) return out;
    const auto mean = [&](int candidate) {
      const ChoiceState& choice = choices_[StateIndex(prompt_idx, candidate)];
      return choice.n_tokens > 0 ? choice.sum_logprob / static_cast<double>(choice.n_tokens) : 0.0;
    };
    std::stable_sort(out.begin(), out.end(), [&](int a, int b) { return mean(a) > mean(b); });
    out.resize(static_cast<size_t>(shape_.n));
    return out;
  }

  const ReplyShape shape_;
  const ResponseWriter writer_;
  const TokenNames names_;
  size_t n_open_prompts_;
  std::vector<PromptState> prompts_;
  std::vector<ChoiceState> choices_;  // prompt-major, n_candidates each
  std::function<void()> cancel_;
  std::function<void(bool)> set_paused_;
  std::optional<EventStream> stream_;
  bool is_done_ = false;
};

std::shared_ptr<GenerationReply> GenerationReply::Create(ReplyShape shape, ResponseWriter writer) {
  return std::shared_ptr<GenerationReply>(new GenerationReply(std::move(shape), std::move(writer)));
}

GenerationReply::GenerationReply(ReplyShape shape, ResponseWriter writer)
    : writer_(writer), renderer_(std::make_unique<Renderer>(std::move(shape), writer)) {}

GenerationReply::~GenerationReply() = default;

engine::EventSink GenerationReply::Sink(size_t prompt_idx) {
  return [self = shared_from_this(), prompt_idx](RequestId, GenerationEvent event) {
    self->Queue(prompt_idx, std::move(event));
  };
}

void GenerationReply::Queue(size_t prompt_idx, GenerationEvent event) {
  if (writer_.disconnected()) return;
  {
    const std::lock_guard lock(mutex_);
    events_.emplace_back(prompt_idx, std::move(event));
    // Events of one step share a task, and one write.
    if (!begun_ || events_.size() > 1) return;
  }
  writer_.Post([self = shared_from_this()] { self->Drain(); });
}

void GenerationReply::Begin(std::function<void()> cancel, std::function<void(bool)> set_paused) {
  writer_.Post([self = shared_from_this(), cancel = std::move(cancel),
                set_paused = std::move(set_paused)]() mutable {
    self->renderer_->Begin(std::move(cancel), std::move(set_paused));
    {
      const std::lock_guard lock(self->mutex_);
      self->begun_ = true;
    }
    self->Drain();
  });
}

void GenerationReply::Drain() {
  std::vector<std::pair<size_t, GenerationEvent>> events;
  {
    const std::lock_guard lock(mutex_);
    events.swap(events_);
  }
  for (auto& [prompt_idx, event] : events) renderer_->On(prompt_idx, std::move(event));
}

}  // namespace tandem::server
