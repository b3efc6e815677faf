// The part of EngineLoop that draws tokens: sampling rows, confirmed guesses, and the next guesses.

#include <algorithm>
#include <chrono>
#include <memory>
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

// ---- Guesses

// Steps of prompts are bound by arithmetic, and say nothing of those that check guesses.
void EngineLoop::TimeStep(const BatchPlan& plan) {
  if (!draft_) return;
  only_decodes_ = std::all_of(plan.slices.begin(), plan.slices.end(),
                              [](const PlannedSlice& slice) { return slice.decodes(); });
  const std::chrono::duration<double> elapsed = Clock::now() - step_began_;
  if (only_decodes_) step_times_.Observe(plan.rows, elapsed.count());
}

// Guesses the next tokens of the sequences that drew. Without memory there are no guesses.
void EngineLoop::ProposeDrafts(std::span<const Sampled> drawn) {
  wanted_.clear();
  wants_.clear();
  HasMemoryFor([&] {
    for (const Sampled& who : drawn) {
      Active* const active = Find(who.request);
      if (active == nullptr) continue;
      Sequence& sequence = *scheduler_->Choices(who.request)[static_cast<size_t>(who.choice)];
      // Further choices of a new prompt may not have a place yet. They compute no guess, and the
      // draft model has rows for running sequences only.
      if (sequence.phase != SequencePhase::kRunning) continue;
      Choice& choice = active->choices[static_cast<size_t>(who.choice)];
      if (who.n_draft > 0 && choice.guessed_by_model) {
        choice.guess_length.Observe(who.n_draft, sequence.n_draft_accepted);
      } else if (who.n_draft > 0) {
        choice.draft_length.Observe(who.n_draft, sequence.n_draft_accepted);
      }
      const int64_t room = GuessRoom(*active, choice, sequence);
      if (room <= 0) continue;
      std::vector<TokenId> draft = LookUp(*active, choice, sequence, room);
      choice.guessed_by_model = draft.empty();
      if (!draft.empty()) {
        scheduler_->Propose(sequence, std::move(draft));
      } else if (draft_ && only_decodes_) {
        // Beside prompts no guess would be computed.
        const int64_t n =
            choice.guess_length.Next(room, scheduler_->num_running(), step_times_, draft_times_);
        if (n == 0) continue;
        if (!choice.draft_text) choice.draft_text = std::make_unique<DraftModel::Text>(*draft_);
        wants_.push_back({.text = choice.draft_text.get(),
                          .tokens = sequence.tokens,
                          .n = n,
                          .sampler = &choice.sampler});
        wanted_.push_back({&sequence, &choice});
      }
    }
    AskDraftModel();
  });
}

int64_t EngineLoop::GuessRoom(const Active& active, const Choice& choice,
                              const Sequence& sequence) const {
  return std::min(scheduler_->DraftRoom(sequence),
                  active.request.stop.max_new_tokens - choice.output.n_tokens() - 1);
}

// What followed the text's last tokens before, or follows them in the request's prediction.
std::vector<TokenId> EngineLoop::LookUp(const Active& active, Choice& choice,
                                        const Sequence& sequence, int64_t room) {
  std::vector<TokenId> draft;
  const std::vector<TokenId>& prediction = active.request.prediction;
  if (!options_.looks_up && prediction.empty()) return draft;
  const int64_t n = std::min(room, choice.draft_length.Next());
  if (n == 0) return draft;
  if (choice.n_looked_up == 0) choice.lookup.Add(prediction);
  choice.lookup.Add(std::span(sequence.tokens).subspan(static_cast<size_t>(choice.n_looked_up)));
  choice.n_looked_up = sequence.length();
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
  return draft;
}

void EngineLoop::AskDraftModel() {
  if (wants_.empty()) return;
  const Clock::time_point began = Clock::now();
  const int64_t passes = draft_->Draft(wants_);
  const std::chrono::duration<double> elapsed = Clock::now() - began;
  stats_.draft_passes_total += passes;
  stats_.draft_seconds_total += elapsed.count();
  const auto n_wants = static_cast<int64_t>(wants_.size());
  // A single pass may have computed a prompt.
  if (passes > 1) draft_times_.Observe(n_wants, elapsed.count() / static_cast<double>(passes));
  for (size_t i = 0; i < wants_.size(); ++i) {
    if (wants_[i].draft.empty()) continue;
    scheduler_->Propose(*wanted_[i].sequence, std::move(wants_[i].draft));
  }
}

}  // namespace tandem::engine
