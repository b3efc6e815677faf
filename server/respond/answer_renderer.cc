#include "server/respond/answer_renderer.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <variant>

#include "server/respond/error_response.h"
#include "server/wire/logprobs.h"

namespace tandem::server {

using engine::ChoiceFinished;
using engine::RequestFinished;

AnswerRenderer::AnswerRenderer(ReplyShape shape, ResponseWriter writer)
    : shape_(std::move(shape)), writer_(std::move(writer)), json_(shape_), reader_(shape_.answer) {
  usage_.prompt_tokens = std::ssize(shape_.prompts.front().ids);
}

void AnswerRenderer::Begin(std::function<void()> /*cancel*/, std::function<void(bool)> set_paused) {
  set_paused_ = std::move(set_paused);
  if (!shape_.begins_late) EnsureBegun();
}

void AnswerRenderer::On(size_t /*prompt_idx*/, engine::GenerationEvent event) {
  if (is_done_) return;
  std::visit([&](auto& alternative) { Handle(alternative); }, event);
}

void AnswerRenderer::EnsureBegun() {
  if (has_begun_) return;
  has_begun_ = true;
  OnBegin();
}

EventStream AnswerRenderer::StartStream() {
  EventStream stream = writer_.StartEventStream();
  stream.OnBackpressure(std::move(set_paused_));
  return stream;
}

EventStream AnswerRenderer::StartLineStream() {
  EventStream stream = writer_.StartLineStream();
  stream.OnBackpressure(std::move(set_paused_));
  return stream;
}

std::string AnswerRenderer::TakeLogprobs() { return std::exchange(logprobs_, {}); }

void AnswerRenderer::AddLogprobs(const engine::TextDelta& delta) {
  if (shape_.top_logprobs < 0) return;
  for (const engine::TokenLogprob& token : delta.logprobs) {
    // The end token has no text, and therefore no entry.
    const auto& ends = shape_.end_tokens;
    if (std::find(ends.begin(), ends.end(), token.token) != ends.end()) continue;
    if (!logprobs_.empty()) logprobs_.push_back(',');
    AppendChatLogprob(logprobs_, token, shape_.top_logprobs, json_.names());
  }
}

void AnswerRenderer::Handle(engine::TextDelta& delta) {
  EnsureBegun();
  usage_.completion_tokens += std::ssize(delta.token_ids);
  AddLogprobs(delta);
  if (shape_.return_token_ids) {
    token_ids_.insert(token_ids_.end(), delta.token_ids.begin(), delta.token_ids.end());
  }
  const engine::AnswerEvents parts = reader_.Read(delta);
  usage_.reasoning_tokens = reader_.reasoning_tokens();
  Show(parts);
}

void AnswerRenderer::Show(const engine::AnswerEvents& parts) {
  for (const engine::AnswerEvent& part : parts) {
    if (const auto* finish = std::get_if<engine::AnswerFinish>(&part)) {
      end_.has_calls = finish->has_calls;
    } else {
      OnPart(part);
    }
  }
  if (!parts.empty()) OnDeltaEnd();
}

void AnswerRenderer::Handle(ChoiceFinished& finished) {
  EnsureBegun();
  usage_.completion_tokens = finished.usage.completion_tokens;
  usage_.cached_tokens = finished.usage.cached_tokens;
  end_.reason = finished.reason;
  end_.stop_string = finished.stop_string;
  Show(reader_.Finish(finished.reason == ChoiceFinished::Reason::kLength));
}

void AnswerRenderer::Handle(RequestFinished& finished) {
  is_done_ = true;
  const bool is_complete = finished.outcome == RequestFinished::Outcome::kCompleted;
  const bool was_cut = end_.reason == ChoiceFinished::Reason::kLength;
  if (shape_.on_prompt_end) {
    shape_.on_prompt_end(!is_complete     ? "error"
                         : was_cut        ? "length"
                         : end_.has_calls ? "tool_calls"
                                          : "stop");
  }
  end_.timings = finished.timings;
  if (is_complete) {
    OnEnd(end_);
  } else {
    OnFailure(EndReply(finished, shape_.request_id));
  }
}

}  // namespace tandem::server
