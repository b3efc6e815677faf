#include "server/respond/vector_renderer.h"

#include <utility>
#include <variant>

#include "server/respond/error_response.h"

namespace tandem::server {

using engine::RequestFinished;

VectorRenderer::VectorRenderer(VectorAnswer answer, ResponseWriter writer)
    : answer_(std::move(answer)), writer_(std::move(writer)), n_open_(answer_.n_prompts) {}

void VectorRenderer::Begin(std::function<void()> cancel, std::function<void(bool)>) {
  cancel_ = std::move(cancel);
}

void VectorRenderer::On(size_t prompt_idx, engine::GenerationEvent event) {
  if (is_done_) return;
  if (const auto* embedding = std::get_if<engine::Embedding>(&event)) {
    answer_.take(prompt_idx, embedding->values);
  } else if (const auto* scores = std::get_if<engine::NextTokenScores>(&event)) {
    std::vector<float> logprobs;
    for (const engine::TokenLogprob& token : scores->tokens) logprobs.push_back(token.logprob);
    answer_.take(prompt_idx, logprobs);
  } else if (const auto* finished = std::get_if<RequestFinished>(&event)) {
    Finish(*finished);
  }
}

void VectorRenderer::Finish(const RequestFinished& finished) {
  const bool is_completed = finished.outcome == RequestFinished::Outcome::kCompleted;
  if (answer_.on_prompt_end) answer_.on_prompt_end(is_completed ? "stop" : "error");
  if (is_completed) {
    if (--n_open_ > 0) return;
    is_done_ = true;
    writer_.Json(200, answer_.body());
    return;
  }
  is_done_ = true;
  if (n_open_ > 1 && cancel_) cancel_();
  writer_.Send(ToResponse(EndReply(finished, answer_.request_id)));
}

}  // namespace tandem::server
