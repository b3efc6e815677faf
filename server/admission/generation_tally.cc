#include "server/admission/generation_tally.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tandem::server {
namespace {

FinishedReason ReasonOf(std::string_view name) {
  if (name == "stop") return FinishedReason::kStop;
  if (name == "length") return FinishedReason::kLength;
  if (name == "tool_calls") return FinishedReason::kToolCalls;
  if (name == "abort") return FinishedReason::kAbort;
  return FinishedReason::kError;
}

int64_t Milliseconds(double seconds) { return std::llround(seconds * 1000); }

}  // namespace

GenerationTally::GenerationTally(About about, const std::shared_ptr<const ResponseWriter>& writer,
                                 Admission& admission, std::shared_ptr<Metrics::RequestEnds> ends)
    : about_(std::move(about)),
      writer_(writer),
      admission_(admission),
      ends_(std::move(ends)),
      n_open_(about_.n_prompts),
      n_in_engine_(about_.n_prompts) {
  writer->Note("model", about_.model);
  writer->Note("prompt_tokens", about_.prompt_tokens);
}

void GenerationTally::OnEvent(const engine::GenerationEvent& event) {
  const std::lock_guard lock(mutex_);
  if (const auto* delta = std::get_if<engine::TextDelta>(&event)) {
    streamed_tokens_ += static_cast<int64_t>(delta->token_ids.size());
  } else if (const auto* choice = std::get_if<engine::ChoiceFinished>(&event)) {
    // Each token of the choice was in an earlier delta.
    streamed_tokens_ -= choice->usage.completion_tokens;
    finished_tokens_ += choice->usage.completion_tokens;
  } else if (const auto* end = std::get_if<engine::RequestFinished>(&event)) {
    timings_.queue_s = std::max(timings_.queue_s, end->timings.queue_s);
    timings_.prefill_s = std::max(timings_.prefill_s, end->timings.prefill_s);
    timings_.decode_s = std::max(timings_.decode_s, end->timings.decode_s);
    timings_.time_to_first_s = std::max(timings_.time_to_first_s, end->timings.time_to_first_s);
    may_retry_ =
        may_retry_ ||
        (end->outcome == engine::RequestFinished::Outcome::kFailed &&
         (end->code == ErrorCode::kDeadlineExceeded || end->code == ErrorCode::kUnavailable));
    if (--n_in_engine_ == 0) {
      admission_.CountTokens(about_.client, about_.prompt_tokens,
                             finished_tokens_ + streamed_tokens_);
      admission_.CorrectTokens(about_.client, about_.charged_tokens,
                               about_.prompt_tokens + finished_tokens_ + streamed_tokens_);
    }
  }
}

void GenerationTally::OnPromptEnd(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  if (n_open_ == 0) return;
  --n_open_;
  Metrics::Count(*ends_, ReasonOf(reason));
  const bool is_over = n_open_ == 0 || reason == "error";
  // A failed prompt fails the others: their answers are never sent.
  for (; is_over && n_open_ > 0; --n_open_) Metrics::Count(*ends_, FinishedReason::kAbort);
  if (!is_over) return;
  NoteEnd(reason);
  // Not in OnEvent: AddRetryAfter holds models for a moment, and an engine must not release the
  // last hold on its own model from its own thread.
  if (may_retry_) {
    if (const auto writer = writer_.lock()) admission_.AddRetryAfter(*writer);
  }
}

void GenerationTally::OnDisconnect() {
  const std::lock_guard lock(mutex_);
  if (n_open_ == 0) return;
  for (; n_open_ > 0; --n_open_) Metrics::Count(*ends_, FinishedReason::kAbort);
  NoteEnd("abort");
}

void GenerationTally::NoteEnd(std::string_view reason) {
  const auto writer = writer_.lock();
  if (!writer) return;
  writer->Note("completion_tokens", finished_tokens_ + streamed_tokens_);
  writer->Note("finish_reason", std::string(reason));
  writer->Note("queue_ms", Milliseconds(timings_.queue_s));
  writer->Note("ttft_ms", Milliseconds(timings_.time_to_first_s));
  writer->Note("prefill_ms", Milliseconds(timings_.prefill_s));
  writer->Note("decode_ms", Milliseconds(timings_.decode_s));
}

}  // namespace tandem::server
