#include "server/respond/generation_reply.h"

#include <algorithm>
#include <random>
#include <string_view>

#include "server/wire/error_body.h"
#include "server/wire/json_text.h"
#include "server/wire/logprobs.h"

namespace tandem::server {
namespace {

using engine::ChoiceFinished;
using engine::GenerationEvent;
using engine::PromptScores;
using engine::RequestFinished;
using engine::TextDelta;
using engine::TokenLogprob;

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

// The state of an answer in the making; lives on the connection's strand. JSON is appended to one
// string, chunk by chunk: a stream of many clients is mostly this and the sockets.
class GenerationReply::Renderer {
 public:
  Renderer(ReplyShape shape, ResponseWriter writer)
      : shape_(std::move(shape)),
        writer_(std::move(writer)),
        names_{shape_.tokenizer, shape_.return_tokens_as_token_ids, shape_.skip_special_tokens},
        head_(MakeHead()),
        n_open_prompts_(shape_.prompts.size()) {
    prompts_.resize(shape_.prompts.size());
    for (const auto& prompt : shape_.prompts) {
      prompt_tokens_ += static_cast<int64_t>(prompt.ids.size());
    }
    choices_.reserve(shape_.prompts.size() * static_cast<size_t>(shape_.n_candidates));
    for (size_t i = 0; i < choices_.capacity(); ++i) {
      choices_.emplace_back(names_, shape_.top_logprobs);
      if (shape_.reasoning) choices_.back().splitter.emplace(*shape_.reasoning);
    }
  }

  void Begin(std::function<void()> cancel, std::function<void(bool)> set_paused) {
    cancel_ = std::move(cancel);
    if (!shape_.stream) return;
    stream_ = writer_.StartEventStream();
    stream_->OnBackpressure(std::move(set_paused));
  }

  void On(size_t prompt_idx, GenerationEvent event) {
    if (is_done_) return;
    std::visit([&](auto& alternative) { Handle(prompt_idx, alternative); }, event);
  }

 private:
  struct PromptState {
    std::vector<TokenLogprob> scores;
    bool has_sent_extras = false;
  };
  struct ChoiceState {
    ChoiceState(const TokenNames& names, int top_logprobs)
        : completion_logprobs(names, top_logprobs) {}

    bool has_begun = false;
    std::string text;
    std::string reasoning;
    std::optional<ReasoningSplitter> splitter;
    std::vector<TokenId> token_ids;  // of the body, or waiting for the next chunk
    std::string chat_logprobs;       // entries, with commas
    CompletionLogprobs completion_logprobs;
    double sum_logprob = 0;
    int64_t n_tokens = 0;
    std::optional<ChoiceFinished> finished;
  };

  bool is_chat() const { return shape_.kind == ReplyShape::Kind::kChat; }
  bool has_logprobs() const { return shape_.top_logprobs >= 0; }

  size_t StateIndex(size_t prompt_idx, int choice) const {
    return prompt_idx * static_cast<size_t>(shape_.n_candidates) + static_cast<size_t>(choice);
  }

  bool IsEndToken(TokenId id) const {
    return std::find(shape_.end_tokens.begin(), shape_.end_tokens.end(), id) !=
           shape_.end_tokens.end();
  }

  void CountTokens(ChoiceState& choice, int64_t n_tokens) {
    completion_tokens_ += n_tokens - choice.n_tokens;
    choice.n_tokens = n_tokens;
  }

  void Handle(size_t prompt_idx, PromptScores& scores) {
    prompts_[prompt_idx].scores = std::move(scores.tokens);
  }

  void Handle(size_t prompt_idx, TextDelta& delta) {
    ChoiceState& choice = choices_[StateIndex(prompt_idx, delta.choice)];
    BeginChoice(prompt_idx, delta.choice, choice);
    CountTokens(choice, choice.n_tokens + static_cast<int64_t>(delta.token_ids.size()));
    for (const TokenLogprob& token : delta.logprobs) {
      choice.sum_logprob += static_cast<double>(token.logprob);
      // The end token has no text, so it has no entry either (CONTRACT §8.5).
      if (!has_logprobs() || IsEndToken(token.token)) continue;
      if (is_chat()) {
        if (!choice.chat_logprobs.empty()) choice.chat_logprobs.push_back(',');
        AppendChatLogprob(choice.chat_logprobs, token, shape_.top_logprobs, names_);
      } else {
        choice.completion_logprobs.Add(token, true);
      }
    }
    if (shape_.return_token_ids) {
      choice.token_ids.insert(choice.token_ids.end(), delta.token_ids.begin(),
                              delta.token_ids.end());
    }
    ReasoningSplitter::Pieces pieces;
    if (choice.splitter) {
      const bool was_thinking = choice.splitter->state() == ReasoningSplitter::State::kThinking;
      pieces = choice.splitter->Push(delta.text);
      // The mark that ends the thought is no part of it.
      if (was_thinking && choice.splitter->state() == ReasoningSplitter::State::kThinking) {
        reasoning_tokens_ += static_cast<int64_t>(delta.token_ids.size());
      }
    } else {
      pieces.content = std::move(delta.text);
    }
    Show(prompt_idx, delta.choice, choice, pieces);
  }

  // Keeps text for the body, or sends it with the tokens that wait. While the splitter holds text
  // back, its tokens wait for it.
  void Show(size_t prompt_idx, int choice_idx, ChoiceState& choice,
            const ReasoningSplitter::Pieces& pieces) {
    if (!stream_) {
      choice.text += pieces.content;
      choice.reasoning += pieces.reasoning;
      return;
    }
    const bool has_text = !pieces.reasoning.empty() || !pieces.content.empty();
    if (!has_text && choice.splitter && choice.splitter->holds()) return;
    if (!has_text && !has_waiting_logprobs(choice) && choice.token_ids.empty()) return;
    if (!pieces.reasoning.empty()) {
      BeginChunk(prompt_idx, choice_idx);
      out_ += R"(,"delta":{"reasoning_content":)";
      AppendJsonString(out_, pieces.reasoning);
      out_.push_back('}');
      // The tokens of a delta that ends a thought go with what follows it.
      FinishTextChunk(choice, pieces.content.empty());
    }
    if (!pieces.content.empty() || pieces.reasoning.empty()) {
      BeginChunk(prompt_idx, choice_idx);
      AppendText(pieces.content);
      FinishTextChunk(choice, true);
    }
  }

  void FinishTextChunk(ChoiceState& choice, bool takes_tokens) {
    out_ += R"(,"logprobs":)";
    if (takes_tokens) {
      TakeLogprobs(choice);
    } else {
      out_ += "null";
    }
    out_ += R"(,"finish_reason":null)";
    if (takes_tokens && !choice.token_ids.empty()) {
      out_ += R"(,"token_ids":)";
      AppendJsonInts(out_, choice.token_ids);
      choice.token_ids.clear();
    }
    SendChunk();
  }

  void Handle(size_t prompt_idx, ChoiceFinished& finished) {
    ChoiceState& choice = choices_[StateIndex(prompt_idx, finished.choice)];
    BeginChoice(prompt_idx, finished.choice, choice);
    CountTokens(choice, finished.usage.completion_tokens);
    if (finished.choice == 0) cached_tokens_ += finished.usage.cached_tokens;
    choice.finished = finished;
    if (choice.splitter) Show(prompt_idx, finished.choice, choice, choice.splitter->Flush());
    if (!stream_) return;
    BeginChunk(prompt_idx, finished.choice);
    out_ += is_chat() ? R"(,"delta":{},"logprobs":null)" : R"(,"text":"","logprobs":null)";
    AppendFinish(finished);
    SendChunk();
  }

  void Handle(size_t, RequestFinished& finished) {
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

    BeginChunk(prompt_idx, choice_idx);
    if (is_chat()) {
      out_ += R"(,"delta":{"role":"assistant","content":""})";
    } else {
      AppendText(choice.text);
      choice.text.clear();
    }
    out_ += R"(,"logprobs":)";
    TakeLogprobs(choice);
    out_ += R"(,"finish_reason":null)";
    if (!is_chat()) AppendPromptExtras(prompt_idx);
    SendChunk(is_chat());
  }

  // What is the same in all chunks of a stream, or begins the body.
  std::string MakeHead() const {
    std::string head = R"({"id":)";
    AppendJsonString(head, shape_.id);
    head += R"(,"object":")";
    head += !is_chat()      ? "text_completion"
            : shape_.stream ? "chat.completion.chunk"
                            : "chat.completion";
    head += R"(","created":)";
    AppendJsonInt(head, shape_.created);
    head += R"(,"model":)";
    AppendJsonString(head, shape_.model);
    head += R"(,"system_fingerprint":)";
    AppendJsonString(head, shape_.fingerprint);
    head += R"(,"choices":[)";
    return head;
  }

  void BeginChunk(size_t prompt_idx, int choice) {
    out_ = head_;
    AppendIndex(prompt_idx, choice);
  }

  void AppendIndex(size_t prompt_idx, int choice) {
    out_ += R"({"index":)";
    AppendJsonInt(out_, prompt_idx * static_cast<size_t>(shape_.n) + static_cast<size_t>(choice));
  }

  void AppendText(std::string_view text) {
    out_ += is_chat() ? R"(,"delta":{"content":)" : R"(,"text":)";
    AppendJsonString(out_, text);
    if (is_chat()) out_.push_back('}');
  }

  // Ends the choice and the chunk. The first chunk of a chat carries what is said of its prompt.
  void SendChunk(bool may_carry_extras = false) {
    out_ += "}]";
    if (may_carry_extras && !prompts_.front().has_sent_extras) {
      prompts_.front().has_sent_extras = true;
      AppendPromptExtras(0);
    }
    if (shape_.continuous_usage) {
      AppendUsage();
    } else if (shape_.include_usage) {
      out_ += R"(,"usage":null)";
    }
    out_.push_back('}');
    stream_->Send(out_);
  }

  bool has_waiting_logprobs(const ChoiceState& choice) const {
    return has_logprobs() &&
           (is_chat() ? !choice.chat_logprobs.empty() : !choice.completion_logprobs.empty());
  }

  // Appends the logprobs that wait, or null.
  void TakeLogprobs(ChoiceState& choice) {
    if (!has_waiting_logprobs(choice)) {
      out_ += "null";
      return;
    }
    TakeLogprobsObject(choice);
  }

  void TakeLogprobsObject(ChoiceState& choice) {
    if (!is_chat()) return choice.completion_logprobs.TakeInto(out_);
    out_ += R"({"content":[)";
    out_ += choice.chat_logprobs;
    out_ += R"(],"refusal":null})";
    choice.chat_logprobs.clear();
  }

  void AppendFinish(const ChoiceFinished& finished) {
    out_ += finished.reason == ChoiceFinished::Reason::kStop ? R"(,"finish_reason":"stop")"
                                                             : R"(,"finish_reason":"length")";
    out_ += R"(,"stop_reason":)";
    const auto& asked = shape_.asked_end_tokens;
    if (!finished.stop_string.empty()) {
      AppendJsonString(out_, finished.stop_string);
    } else if (finished.stop_token &&
               std::find(asked.begin(), asked.end(), *finished.stop_token) != asked.end()) {
      AppendJsonInt(out_, *finished.stop_token);
    } else {
      out_ += "null";
    }
  }

  // Prompt ids and scores: once per choice in completions, once per answer in chat.
  void AppendPromptExtras(size_t prompt_idx) {
    if (shape_.return_token_ids) {
      out_ += R"(,"prompt_token_ids":)";
      AppendJsonInts(out_, shape_.prompts[prompt_idx].ids);
    }
    if (shape_.prompt_logprobs) {
      out_ += R"(,"prompt_logprobs":)";
      AppendPromptLogprobs(out_, prompts_[prompt_idx].scores, *shape_.prompt_logprobs, names_);
    }
  }

  void AppendUsage() {
    out_ += R"(,"usage":{"prompt_tokens":)";
    AppendJsonInt(out_, prompt_tokens_);
    out_ += R"(,"completion_tokens":)";
    AppendJsonInt(out_, completion_tokens_);
    out_ += R"(,"total_tokens":)";
    AppendJsonInt(out_, prompt_tokens_ + completion_tokens_);
    out_ += R"(,"prompt_tokens_details":{"cached_tokens":)";
    AppendJsonInt(out_, cached_tokens_);
    out_ += R"(},"completion_tokens_details":{"reasoning_tokens":)";
    AppendJsonInt(out_, reasoning_tokens_);
    out_ += "}}";
  }

  void Complete() {
    is_done_ = true;
    if (stream_) {
      if (shape_.include_usage) {
        out_ = head_;
        out_.push_back(']');
        AppendUsage();
        out_.push_back('}');
        stream_->Send(out_);
      }
      stream_->Send("[DONE]");
      stream_->Close();
      return;
    }

    out_ = head_;
    for (size_t prompt_idx = 0; prompt_idx < prompts_.size(); ++prompt_idx) {
      int rank = 0;
      for (const int candidate : BestCandidates(prompt_idx)) {
        if (out_.size() > head_.size()) out_.push_back(',');
        AppendBodyChoice(prompt_idx, rank++, candidate);
      }
    }
    out_.push_back(']');
    AppendUsage();
    if (is_chat()) AppendPromptExtras(0);
    out_.push_back('}');
    writer_.Json(200, std::move(out_));
  }

  void AppendBodyChoice(size_t prompt_idx, int rank, int candidate) {
    ChoiceState& choice = choices_[StateIndex(prompt_idx, candidate)];
    AppendIndex(prompt_idx, rank);
    if (is_chat()) {
      out_ += R"(,"message":{"role":"assistant","content":)";
      AppendJsonString(out_, choice.text);
      out_ += R"(,"refusal":null)";
      if (!choice.reasoning.empty()) {
        for (const char* name : {R"(,"reasoning_content":)", R"(,"reasoning":)"}) {
          out_ += name;
          AppendJsonString(out_, choice.reasoning);
        }
      }
      out_.push_back('}');
    } else {
      AppendText(choice.text);
    }
    out_ += R"(,"logprobs":)";
    // No token, but the client asked: empty lists, not "off".
    if (has_logprobs()) {
      TakeLogprobsObject(choice);
    } else {
      out_ += "null";
    }
    AppendFinish(choice.finished.value_or(ChoiceFinished{}));
    if (shape_.return_token_ids) {
      out_ += R"(,"token_ids":)";
      AppendJsonInts(out_, choice.token_ids);
    }
    if (!is_chat()) AppendPromptExtras(prompt_idx);
    out_.push_back('}');
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
  const std::string head_;
  std::string out_;  // the chunk or body being written
  int64_t prompt_tokens_ = 0;
  int64_t cached_tokens_ = 0;
  int64_t completion_tokens_ = 0;  // of all choices so far
  int64_t reasoning_tokens_ = 0;   // of these, thought
  size_t n_open_prompts_;
  std::vector<PromptState> prompts_;
  std::vector<ChoiceState> choices_;  // prompt-major, n_candidates each
  std::function<void()> cancel_;
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
