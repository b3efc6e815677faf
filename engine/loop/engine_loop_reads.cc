// The part of EngineLoop for requests that generate nothing: embeddings and scores of next tokens.

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/out_of_memory.h"
#include "engine/loop/engine_loop.h"

namespace tandem::engine {

// Notes what the step added to the sums, and ends the requests whose sum is complete.
void EngineLoop::TakeEmbeddings() {
  pooled_.clear();
  for (const StepRunner::Slice& slice : slices_) {
    if (!slice.pools) continue;
    const RequestId id = slice.planned.sequence->request;
    Active& active = *Find(id);
    active.n_pooled =
        std::max(active.n_pooled, slice.planned.first_position + slice.planned.n_tokens);
    if (slice.planned.samples) pooled_.push_back(id);
  }
  for (const RequestId id : pooled_) {
    Active& active = *Find(id);
    Sequence& sequence = *scheduler_->Choices(id)[0];
    CountPrompt(active);
    if (!HasMemoryFor([&] { FinishEmbedding(active, sequence); })) EndWithoutMemory(id);
  }
}

void EngineLoop::FinishEmbedding(Active& active, Sequence& sequence) {
  const RequestId id = sequence.request;
  const auto n =
      static_cast<double>(PositionsOf(*active.request.pooling, active.prompt_len).count());
  Embedding embedding;
  embedding.values.reserve(active.hidden_sum.size());
  for (const double sum : active.hidden_sum) {
    embedding.values.push_back(static_cast<float>(sum / n));
  }
  if (!std::all_of(embedding.values.begin(), embedding.values.end(),
                   [](float value) { return std::isfinite(value); })) {
    End(id, {.outcome = RequestFinished::Outcome::kFailed,
             .code = ErrorCode::kInternal,
             .message = kNotFinite});
    return;
  }
  Emit(active, id, std::move(embedding));
  FinishChoice(active, sequence, {.reason = ChoiceFinished::Reason::kStop});
}

// Takes the score of one of next_tokens. Returns false when the request has all of them.
bool EngineLoop::AwaitsNextScores(Active& active, RequestId id, StepRunner::Job& job) {
  if (!std::isfinite(job.logprob.logprob)) {
    End(id, {.outcome = RequestFinished::Outcome::kFailed,
             .code = ErrorCode::kInternal,
             .message = kNotFinite});
    return true;
  }
  active.next_scores.push_back(std::move(job.logprob));
  if (active.next_scores.size() < active.request.next_tokens.size()) return true;
  Emit(active, id, NextTokenScores{std::move(active.next_scores)});
  return false;
}

}  // namespace tandem::engine
