// The part of EngineLoop that draws tokens: sampling rows, confirmed guesses, and the next guesses.

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "engine/base/out_of_memory.h"
#include "engine/loop/engine_loop.h"

namespace tandem::engine {

// Draws the sampling rows. Where the token drawn confirms a guess, the row of the guess is known,
// too, and is drawn in a further round.
void EngineLoop::SampleAndTake() {
  jobs_.clear();
  sampled_.clear();
  for (const StepRunner::Slice& slice : slices_) {
    if (!slice.planned.samples || slice.pools) continue;
    const Sequence& sequence = *slice.planned.sequence;
    if (!slice.planned.forks) {
      AddJobs(sequence, slice.sample_row, slice.planned.n_draft);
      continue;
    }
    for (const auto& choice : scheduler_->Choices(sequence.request)) {
      AddJobs(*choice, slice.sample_row, 0);
    }
  }
  const std::vector<Sampled> first = options_.draft_rows > 0 ? sampled_ : std::vector<Sampled>();
  do {
    DrawAndTake();
  } while (AddConfirmedRows());
  ProposeDrafts(first);
}

void EngineLoop::AddJobs(const Sequence& sequence, int64_t row, int64_t n_draft) {
  Active& active = *Find(sequence.request);
  CountPrompt(active);
  Choice& choice = active.choices[static_cast<size_t>(sequence.choice)];
  const Sampled who{sequence.request, sequence.choice, row, n_draft};
  StepRunner::Job job;
  job.logit_row = row;
  for (const TokenId token : active.request.next_tokens) {
    job.token = token;
    job.n_top = 0;
    jobs_.push_back(job);
    sampled_.push_back(who);
  }
  if (!active.request.next_tokens.empty()) return;
  if (active.request.stop.max_new_tokens > 0) {
    job.sampler = &choice.sampler;
    job.position = sequence.length();
    job.banned = choice.output.banned_tokens();
    job.forced = choice.output.forced_token();
    if (active.request.grammar) {
      job.grammar = active.request.grammar.get();
      job.matcher = &choice.matcher;
    }
    job.n_top = active.request.top_logprobs;
  }
  jobs_.push_back(std::move(job));
  sampled_.push_back(who);
}

void EngineLoop::DrawAndTake() {
  runner_->Run(jobs_);
  sampled_at_ = Clock::now();
  for (size_t i = 0; i < jobs_.size(); ++i) {
    // A request that failed with an earlier choice no longer exists.
    Active* active = Find(sampled_[i].request);
    if (active == nullptr) continue;
    if (!HasMemoryFor([&] { TakeToken(*active, sampled_[i], jobs_[i]); })) {
      EndWithoutMemory(sampled_[i].request);
    }
  }
}

// False when no guess was confirmed.
bool EngineLoop::AddConfirmedRows() {
  confirmed_.swap(sampled_);
  jobs_.clear();
  sampled_.clear();
  for (const Sampled& who : confirmed_) {
    if (who.n_draft == 0 || Find(who.request) == nullptr) continue;
    const Sequence& sequence = *scheduler_->Choices(who.request)[static_cast<size_t>(who.choice)];
    if (sequence.live() && sequence.uncomputed() == 0) {
      AddJobs(sequence, who.row + 1, who.n_draft - 1);
    }
  }
  return !jobs_.empty();
}

// Guesses the next tokens of the sequences that drew. Without memory there are no guesses.
void EngineLoop::ProposeDrafts(std::span<const Sampled> drawn) {
  HasMemoryFor([&] {
    for (const Sampled& who : drawn) {
      Active* const active = Find(who.request);
      if (active == nullptr) continue;
      Sequence& sequence = *scheduler_->Choices(who.request)[static_cast<size_t>(who.choice)];
      if (!sequence.live()) continue;
      Choice& choice = active->choices[static_cast<size_t>(who.choice)];
      ProposeDraft(*active, choice, sequence, who.n_draft);
    }
  });
}

// `n_draft`: guesses that the step computed.
void EngineLoop::ProposeDraft(const Active& active, Choice& choice, Sequence& sequence,
                              int64_t n_draft) {
  if (n_draft > 0) choice.draft_length.Observe(n_draft, sequence.n_draft_accepted);
  const int64_t room = std::min(scheduler_->DraftRoom(sequence),
                                active.request.stop.max_new_tokens - choice.output.n_tokens() - 1);
  if (room <= 0) return;
  const int64_t n = std::min(room, choice.draft_length.Next());
  if (n == 0) return;
  const std::vector<TokenId>& prediction = active.request.prediction;
  if (choice.n_looked_up == 0) choice.lookup.Add(prediction);
  choice.lookup.Add(std::span(sequence.tokens).subspan(static_cast<size_t>(choice.n_looked_up)));
  choice.n_looked_up = sequence.length();
  std::vector<TokenId> draft;
  const int64_t n_drawn = sequence.length() - active.prompt_len;
  const auto begins = [&] {
    return n_drawn < PromptLookup::kLeastMatch &&
           n_drawn < static_cast<int64_t>(prediction.size()) &&
           std::equal(sequence.tokens.end() - n_drawn, sequence.tokens.end(), prediction.begin());
  };
  if (begins()) {
    const auto from = prediction.begin() + n_drawn;
    draft.assign(from, from + std::min<int64_t>(n, prediction.end() - from));
  } else {
    choice.lookup.Draft(n, draft);
  }
  if (!draft.empty()) scheduler_->Propose(sequence, std::move(draft));
}

}  // namespace tandem::engine
