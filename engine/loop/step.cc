#include "engine/loop/step.h"

#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/parallel_for.h"
#include "engine/ops/attention.h"
#include "engine/ops/softmax.h"
#include "engine/sampling/logprobs.h"

namespace tandem::engine {

StepRunner::StepRunner(std::shared_ptr<const Model> model, OpsContext& ops, KvCache& kv,
                       StateCache& states, int64_t max_rows, int64_t max_logit_rows)
    : model_(std::move(model)),
      ops_(ops),
      kv_(kv),
      states_(states),
      runner_(model_, ops, max_rows, max_logit_rows),
      vocab_size_(model_->config().vocab_size),
      scratch_(static_cast<size_t>(ops.pool().n_threads())) {}

int64_t StepRunner::scratch_bytes() const { return runner_.scratch_bytes(); }

void StepRunner::ListStates(const BatchPlan& plan, std::span<const Slice> slices) {
  slice_states_.clear();
  state_saves_.clear();
  if (states_.n_states() == 0) return;
  for (const PlannedSave& save : plan.saves) {
    state_saves_.push_back({.position = save.position, .state = states_.At(save.state)});
  }
  for (const Slice& slice : slices) {
    const std::optional<StateId>& state = slice.planned.sequence->state;
    TANDEM_CHECK(state.has_value());
    slice_states_.push_back(
        {.state = states_.At(*state),
         .saves =
             std::span(state_saves_).subspan(slice.planned.first_save, slice.planned.n_saves)});
  }
}

void StepRunner::ListFurtherTables(std::span<const Slice> slices) {
  further_tables_.clear();
  for (size_t table = 1; table < kv_.shape().windows.size(); ++table) {
    for (size_t i = 0; i < slices.size(); ++i) {
      AttentionSlice rows = attention_slices_[i];
      rows.blocks = slices[i].planned.sequence->tables[table];
      further_tables_.push_back(rows);
    }
  }
}

void StepRunner::Forward(const BatchPlan& plan, std::span<Slice> slices) {
  for (const BlockCopy& copy : plan.copies) kv_.CopyBlock(copy.from, copy.to);
  for (const StateCopy& copy : plan.state_copies) states_.Copy(copy.from, copy.to);
  ListStates(plan, slices);

  tokens_.clear();
  positions_.clear();
  attention_slices_.clear();
  logit_rows_.clear();
  hidden_sums_.clear();
  adapters_.clear();
  for (Slice& slice : slices) {
    const PlannedSlice& planned = slice.planned;
    const Sequence& sequence = *planned.sequence;
    const auto first_row = static_cast<int64_t>(tokens_.size());
    const int64_t end = planned.first_position + planned.n_tokens;
    attention_slices_.push_back({.first_row = first_row,
                                 .n_rows = planned.n_tokens,
                                 .first_position = planned.first_position,
                                 .blocks = sequence.blocks()});
    adapters_.push_back(slice.adapter);
    if (slice.pool_begin < slice.pool_end) {
      hidden_sums_.push_back({.first_row = first_row + slice.pool_begin - planned.first_position,
                              .n_rows = slice.pool_end - slice.pool_begin,
                              .sum = slice.hidden_sum});
    }
    slice.first_score_row = static_cast<int64_t>(logit_rows_.size());
    for (int64_t p = planned.first_position; p < end; ++p) {
      const bool samples = planned.samples && !slice.pools && p + 1 >= end - planned.n_draft;
      if (samples && p + 1 == end - planned.n_draft) {
        slice.sample_row = static_cast<int64_t>(logit_rows_.size());
      }
      if (samples || (p >= slice.score_begin && p < slice.score_end)) {
        logit_rows_.push_back(static_cast<int32_t>(tokens_.size()));
      }
      const int64_t guess = p - sequence.length();
      tokens_.push_back(guess < 0 ? sequence.tokens[static_cast<size_t>(p)]
                                  : sequence.draft[static_cast<size_t>(guess)]);
      positions_.push_back(static_cast<int32_t>(p));
    }
  }
  ListFurtherTables(slices);
  logits_ = runner_.Forward({.tokens = tokens_,
                             .positions = positions_,
                             .slices = attention_slices_,
                             .logit_rows = logit_rows_,
                             .adapters = adapters_,
                             .hidden_sums = hidden_sums_,
                             .states = slice_states_,
                             .further_tables = further_tables_},
                            kv_);
}

void StepRunner::Run(std::span<Job> jobs) {
  ComputeLse(jobs);
  // Waking the workers costs some microseconds; drawing from a small vocabulary costs about as
  // much.
  constexpr int64_t kWorthSharing = 65536;  // logits
  const auto n_jobs = static_cast<int64_t>(jobs.size());
  if (n_jobs * vocab_size_ < kWorthSharing) {
    for (Job& job : jobs) RunJob(job, scratch_[0]);
    return;
  }
  // Lack of memory in a worker fails this step.
  RunAll(ops_.pool(), n_jobs, [&](int64_t i, int worker) {
    RunJob(jobs[static_cast<size_t>(i)], scratch_[static_cast<size_t>(worker)]);
  });
}

void StepRunner::RunJob(Job& job, Scratch& scratch) const {
  const auto vocab = static_cast<size_t>(vocab_size_);
  const std::span<const float> row =
      logits_.subspan(static_cast<size_t>(job.logit_row) * vocab, vocab);
  if (job.sampler != nullptr) {
    job.fault = ErrorOf([&] { Draw(job, row, scratch); });
  }
  if (job.n_top < 0 || job.token < 0) return;
  ScoredToken scored = ScoreToken(row, lse_[static_cast<size_t>(job.logit_row)], job.token,
                                  job.n_top, scratch.sampler.score);
  job.logprob = {.token = job.token,
                 .logprob = scored.logprob,
                 .rank = scored.rank,
                 .top = std::move(scored.top)};
}

// A grammar that fails ends its own request only.
void StepRunner::Draw(Job& job, std::span<const float> row, Scratch& scratch) const {
  std::span<const uint32_t> mask;
  if (job.grammar != nullptr) {
    std::optional<GrammarMatcher>& matcher = *job.matcher;
    if (!matcher) matcher = job.grammar->NewMatcher();
    scratch.mask.resize(MaskWords(vocab_size_));
    if (!matcher->Mask(scratch.mask)) {
      job.is_complete = true;
      return;
    }
    mask = scratch.mask;
  }
  const bool is_forced = job.forced >= 0 && (mask.empty() || IsAllowed(mask, job.forced));
  job.token = is_forced ? job.forced
                        : job.sampler->Sample(row, job.position, job.banned, scratch.sampler, mask);
  if (job.grammar != nullptr && job.token >= 0) {
    job.is_complete = (*job.matcher)->Commit(job.token);
  }
}

// One LogSumExp per run of adjacent scored rows; a row's value does not depend on the run.
void StepRunner::ComputeLse(std::span<const Job> jobs) {
  const size_t n_rows = logit_rows_.size();
  wants_lse_.assign(n_rows + 1, 0);
  for (const Job& job : jobs) {
    TANDEM_CHECK(job.logit_row >= 0 && job.logit_row < static_cast<int64_t>(n_rows));
    if (job.n_top >= 0) wants_lse_[static_cast<size_t>(job.logit_row)] = 1;
  }
  lse_.resize(n_rows);
  for (size_t row = 0; row < n_rows;) {
    size_t end = row;
    while (wants_lse_[end] != 0) ++end;
    if (end > row) {
      LogSumExp(ops_, logits_.data() + row * static_cast<size_t>(vocab_size_),
                static_cast<int64_t>(end - row), vocab_size_, vocab_size_, lse_.data() + row);
    }
    row = end + 1;
  }
}

}  // namespace tandem::engine
