#include "server/respond/reply_renderer.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <variant>

#include "server/respond/error_response.h"
#include "server/wire/json_text.h"

namespace tandem::server {

using engine::ChoiceFinished;
using engine::GenerationEvent;
using engine::PromptScores;
using engine::RequestFinished;
using engine::TextDelta;
using engine::TokenLogprob;

namespace {

// Whether a stream has a chunk for the event. The end of a call shows only in the finish reason.
bool IsShown(const engine::AnswerEvent& event) {
  return std::holds_alternative<engine::TextPart>(event) ||
         std::holds_alternative<engine::ReasoningPart>(event) ||
         std::holds_alternative<engine::CallBegin>(event) ||
         std::holds_alternative<engine::CallArguments>(event);
}

}  // namespace

ReplyRenderer::ReplyRenderer(ReplyShape shape, ResponseWriter writer)
    : shape_(std::move(shape)),
      writer_(std::move(writer)),
      json_(shape_),
      n_open_prompts_(shape_.prompts.size()) {
  prompts_.resize(shape_.prompts.size());
  for (const auto& prompt : shape_.prompts) {
    usage_.prompt_tokens += static_cast<int64_t>(prompt.ids.size());
  }
  choices_.reserve(shape_.prompts.size() * static_cast<size_t>(shape_.n_candidates));
  for (size_t i = 0; i < choices_.capacity(); ++i) {
    choices_.emplace_back(shape_.answer, json_.names(), shape_.top_logprobs);
  }
}

void ReplyRenderer::Begin(std::function<void()> cancel, std::function<void(bool)> set_paused) {
  cancel_ = std::move(cancel);
  set_paused_ = std::move(set_paused);
  if (!shape_.begins_late) BeginStream();
}

void ReplyRenderer::On(size_t prompt_idx, GenerationEvent event) {
  if (is_done_) return;
  if (!stream_ && !IsFailure(event)) BeginStream();
  std::visit([&](auto& alternative) { Handle(prompt_idx, alternative); }, event);
}

void ReplyRenderer::BeginStream() {
  if (!shape_.stream) return;
  stream_ = writer_.StartEventStream();
  stream_->OnBackpressure(std::move(set_paused_));
}

bool ReplyRenderer::IsFailure(const GenerationEvent& event) {
  const auto* end = std::get_if<RequestFinished>(&event);
  return end != nullptr && end->outcome != RequestFinished::Outcome::kCompleted;
}

void ReplyRenderer::ReportEnd(size_t prompt_idx, const RequestFinished& finished) const {
  if (!shape_.on_prompt_end) return;
  if (finished.outcome != RequestFinished::Outcome::kCompleted) {
    return shape_.on_prompt_end("error");
  }
  bool was_cut = false, has_calls = false;
  for (int i = 0; i < shape_.n_candidates; ++i) {
    const ChoiceState& choice = choices_[StateIndex(prompt_idx, i)];
    const auto& end = choice.finished;
    has_calls = has_calls || choice.ends_with_calls;
    was_cut = was_cut || (end && end->reason == ChoiceFinished::Reason::kLength);
  }
  shape_.on_prompt_end(was_cut ? "length" : has_calls ? "tool_calls" : "stop");
}

size_t ReplyRenderer::StateIndex(size_t prompt_idx, int choice) const {
  return prompt_idx * static_cast<size_t>(shape_.n_candidates) + static_cast<size_t>(choice);
}

bool ReplyRenderer::IsEndToken(TokenId id) const {
  return std::find(shape_.end_tokens.begin(), shape_.end_tokens.end(), id) !=
         shape_.end_tokens.end();
}

void ReplyRenderer::CountTokens(ChoiceState& choice, int64_t n_tokens) {
  usage_.completion_tokens += n_tokens - choice.n_tokens;
  choice.n_tokens = n_tokens;
}

void ReplyRenderer::Handle(size_t prompt_idx, PromptScores& scores) {
  prompts_[prompt_idx].scores = std::move(scores.tokens);
}

void ReplyRenderer::Handle(size_t prompt_idx, TextDelta& delta) {
  ChoiceState& choice = choices_[StateIndex(prompt_idx, delta.choice)];
  BeginChoice(prompt_idx, delta.choice, choice);
  CountTokens(choice, choice.n_tokens + static_cast<int64_t>(delta.token_ids.size()));
  for (const TokenLogprob& token : delta.logprobs) {
    choice.sum_logprob += static_cast<double>(token.logprob);
    // The end token has no text, and therefore no entry.
    if (!has_logprobs() || IsEndToken(token.token)) continue;
    if (is_chat()) {
      if (!choice.chat_logprobs.empty()) choice.chat_logprobs.push_back(',');
      AppendChatLogprob(choice.chat_logprobs, token, shape_.top_logprobs, json_.names());
    } else {
      choice.completion_logprobs.Add(token, true);
    }
  }
  if (shape_.return_token_ids) {
    choice.token_ids.insert(choice.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
  }
  const int64_t n_reasoning = choice.reader.reasoning_tokens();
  const engine::AnswerEvents events = choice.reader.Read(delta);
  usage_.reasoning_tokens += choice.reader.reasoning_tokens() - n_reasoning;
  Show(prompt_idx, delta.choice, choice, events);
}

// Collects the parts of a body.
void ReplyRenderer::Keep(ChoiceState& choice, const engine::AnswerEvents& events) {
  for (const engine::AnswerEvent& event : events) {
    if (const auto* text = std::get_if<engine::TextPart>(&event)) {
      choice.text += text->text;
    } else if (const auto* thought = std::get_if<engine::ReasoningPart>(&event)) {
      choice.reasoning += thought->text;
    } else if (const auto* begin = std::get_if<engine::CallBegin>(&event)) {
      choice.calls.push_back({begin->index, begin->id, begin->name, {}, begin->is_custom});
    } else if (const auto* arguments = std::get_if<engine::CallArguments>(&event)) {
      choice.calls.back().arguments += arguments->text;
    } else if (const auto* dropped = std::get_if<engine::CallDropped>(&event)) {
      choice.calls.pop_back();
      choice.text += dropped->written;
    }
  }
}

// Keeps the parts for the body, or sends them with their tokens. While the parser holds text back,
// the tokens of that text wait too. The tokens of a delta go with its last chunk.
void ReplyRenderer::Show(size_t prompt_idx, int choice_idx, ChoiceState& choice,
                         const engine::AnswerEvents& events) {
  for (const engine::AnswerEvent& event : events) {
    const auto* finish = std::get_if<engine::AnswerFinish>(&event);
    if (finish != nullptr) choice.ends_with_calls = finish->has_calls;
  }
  if (!stream_) return Keep(choice, events);
  const auto n_chunks = std::count_if(events.begin(), events.end(), IsShown);
  if (n_chunks == 0) {
    if (choice.reader.holds()) return;
    if (!has_waiting_logprobs(choice) && choice.token_ids.empty()) return;
    BeginChunk(prompt_idx, choice_idx);
    json_.AppendText(out_, {});
    return FinishTextChunk(choice, true);
  }
  std::ptrdiff_t n_sent = 0;
  for (const engine::AnswerEvent& event : events) {
    if (!IsShown(event)) continue;
    BeginChunk(prompt_idx, choice_idx);
    if (const auto* text = std::get_if<engine::TextPart>(&event)) {
      json_.AppendText(out_, text->text);
    } else if (const auto* thought = std::get_if<engine::ReasoningPart>(&event)) {
      AppendReasoningDelta(out_, thought->text);
    } else if (const auto* begin = std::get_if<engine::CallBegin>(&event)) {
      AppendCallBegin(out_, *begin);
    } else {
      AppendCallArguments(out_, std::get<engine::CallArguments>(event));
    }
    FinishTextChunk(choice, ++n_sent == n_chunks);
  }
}

void ReplyRenderer::FinishTextChunk(ChoiceState& choice, bool takes_tokens) {
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

void ReplyRenderer::Handle(size_t prompt_idx, ChoiceFinished& finished) {
  ChoiceState& choice = choices_[StateIndex(prompt_idx, finished.choice)];
  BeginChoice(prompt_idx, finished.choice, choice);
  CountTokens(choice, finished.usage.completion_tokens);
  if (finished.choice == 0) usage_.cached_tokens += finished.usage.cached_tokens;
  usage_.accepted_prediction_tokens += finished.usage.accepted_draft_tokens;
  usage_.rejected_prediction_tokens += finished.usage.rejected_draft_tokens;
  choice.finished = finished;
  const bool was_cut = finished.reason == ChoiceFinished::Reason::kLength;
  Show(prompt_idx, finished.choice, choice, choice.reader.Finish(was_cut));
  if (!stream_) return;
  BeginChunk(prompt_idx, finished.choice);
  out_ += is_chat() ? R"(,"delta":{},"logprobs":null)" : R"(,"text":"","logprobs":null)";
  json_.AppendFinish(out_, finished, choice.ends_with_calls);
  SendChunk();
}

void ReplyRenderer::Handle(size_t prompt_idx, RequestFinished& finished) {
  ReportEnd(prompt_idx, finished);
  if (finished.outcome == RequestFinished::Outcome::kCompleted) {
    if (--n_open_prompts_ == 0) Complete();
    return;
  }
  // If one prompt of a list fails, the whole answer fails.
  is_done_ = true;
  if (n_open_prompts_ > 1 && cancel_) cancel_();
  ErrorReply reply = EndReply(finished, shape_.request_id);
  if (stream_) {
    stream_->Send(reply.body);
    stream_->Send("[DONE]");
    stream_->Close();
  } else {
    writer_.Send(ToResponse(std::move(reply)));
  }
}

// Starts a choice: chat sends the role, completions echo the prompt if requested.
void ReplyRenderer::BeginChoice(size_t prompt_idx, int choice_idx, ChoiceState& choice) {
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
  choice.completion_logprobs.EndPrompt(shape_.prompts[prompt_idx].continues_text);
  if (!stream_) return;
  if (!is_chat() && !echoes && !shape_.return_token_ids && !shape_.prompt_logprobs) return;

  BeginChunk(prompt_idx, choice_idx);
  if (is_chat()) {
    out_ += R"(,"delta":{"role":"assistant","content":""})";
  } else {
    json_.AppendText(out_, choice.text);
    choice.text.clear();
  }
  out_ += R"(,"logprobs":)";
  TakeLogprobs(choice);
  out_ += R"(,"finish_reason":null)";
  if (!is_chat()) json_.AppendPromptExtras(out_, prompt_idx, prompts_[prompt_idx].scores);
  SendChunk(is_chat());
}

void ReplyRenderer::BeginChunk(size_t prompt_idx, int choice) {
  out_ = json_.head();
  json_.AppendIndex(out_, prompt_idx, choice);
}

// Ends the choice and the chunk. The first chunk of a chat carries the prompt's extras.
void ReplyRenderer::SendChunk(bool may_carry_extras) {
  out_ += "}]";
  if (may_carry_extras && !prompts_.front().has_sent_extras) {
    prompts_.front().has_sent_extras = true;
    json_.AppendPromptExtras(out_, 0, prompts_[0].scores);
  }
  if (shape_.continuous_usage) {
    AppendUsage(out_, usage_);
  } else if (shape_.include_usage) {
    out_ += R"(,"usage":null)";
  }
  out_.push_back('}');
  stream_->Send(out_);
}

bool ReplyRenderer::has_waiting_logprobs(const ChoiceState& choice) const {
  return has_logprobs() &&
         (is_chat() ? !choice.chat_logprobs.empty() : !choice.completion_logprobs.empty());
}

// Appends the waiting logprobs, or null.
void ReplyRenderer::TakeLogprobs(ChoiceState& choice) {
  if (!has_waiting_logprobs(choice)) {
    out_ += "null";
    return;
  }
  TakeLogprobsObject(choice);
}

void ReplyRenderer::TakeLogprobsObject(ChoiceState& choice) {
  if (!is_chat()) return choice.completion_logprobs.TakeInto(out_);
  out_ += R"({"content":[)";
  out_ += choice.chat_logprobs;
  out_ += R"(],"refusal":null})";
  choice.chat_logprobs.clear();
}

void ReplyRenderer::Complete() {
  is_done_ = true;
  if (stream_) {
    if (shape_.include_usage) {
      out_ = json_.head();
      out_.push_back(']');
      AppendUsage(out_, usage_);
      out_.push_back('}');
      stream_->Send(out_);
    }
    stream_->Send("[DONE]");
    stream_->Close();
    return;
  }

  out_ = json_.head();
  for (size_t prompt_idx = 0; prompt_idx < prompts_.size(); ++prompt_idx) {
    int rank = 0;
    for (const int candidate : BestCandidates(prompt_idx)) {
      if (out_.size() > json_.head().size()) out_.push_back(',');
      AppendBodyChoice(prompt_idx, rank++, candidate);
    }
  }
  out_.push_back(']');
  AppendUsage(out_, usage_);
  if (is_chat()) json_.AppendPromptExtras(out_, 0, prompts_[0].scores);
  out_.push_back('}');
  writer_.Json(200, std::move(out_));
}

void ReplyRenderer::AppendBodyChoice(size_t prompt_idx, int rank, int candidate) {
  ChoiceState& choice = choices_[StateIndex(prompt_idx, candidate)];
  json_.AppendIndex(out_, prompt_idx, rank);
  if (is_chat()) {
    AppendMessage(out_, choice.text, choice.reasoning, choice.calls);
  } else {
    json_.AppendText(out_, choice.text);
  }
  out_ += R"(,"logprobs":)";
  // Without a token but with logprobs requested: empty lists instead of null.
  if (has_logprobs()) {
    TakeLogprobsObject(choice);
  } else {
    out_ += "null";
  }
  json_.AppendFinish(out_, choice.finished.value_or(ChoiceFinished{}), choice.ends_with_calls);
  if (shape_.return_token_ids) {
    out_ += R"(,"token_ids":)";
    AppendJsonInts(out_, choice.token_ids);
  }
  if (!is_chat()) json_.AppendPromptExtras(out_, prompt_idx, prompts_[prompt_idx].scores);
  out_.push_back('}');
}

// All candidates in order; for best_of, the n candidates with the best mean log-probability.
std::vector<int> ReplyRenderer::BestCandidates(size_t prompt_idx) const {
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

}  // namespace tandem::server
