#include "engine/loop/engine_loop.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/out_of_memory.h"
#include "engine/kernels/kernels.h"
#include "engine/loop/memory_plan.h"
#include "engine/model/adapter.h"

namespace tandem::engine {
namespace {

// The loop updates its heartbeat at least this often, even when idle.
constexpr auto kHeartbeat = std::chrono::milliseconds(1000);
// Pause after a round without memory, so that other code may free some.
constexpr auto kPauseWithoutMemory = std::chrono::milliseconds(10);

// Runs `action` and reports an exception with fail(code, message). Needs no memory to report that
// there is none.
template <class Action, class Fail>
void Contain(const Action& action, const Fail& fail) {
  std::optional<Error> error;
  bool has_memory = true;
  const std::exception_ptr other =
      FaultOf([&] { has_memory = HasMemoryFor([&] { error = ErrorOf(action); }); });
  if (other != nullptr) has_memory = HasMemoryFor([&] { error = ToError(other); });
  if (!has_memory) return fail(ErrorCode::kUnavailable, EngineLoop::kOutOfMemory);
  if (error) fail(error->code(), error->what());
}

}  // namespace

EngineLoop::EngineLoop(const LoadedModel& model, const EngineOptions& options,
                       Mailbox<LoopCommand>& inbox, LoopStatus& status)
    : model_(model),
      options_(ResolveOptions(options, model.model->active_parameters())),
      inbox_(inbox),
      status_(status),
      pool_(options.threads),
      ops_(options.kernels != nullptr ? *options.kernels : Kernels(), pool_) {
  // The runner's scratch determines the cache size, and the runner borrows the cache: create both,
  // then resize the cache.
  KvCache::Shape shape =
      ModelRunner::WindowedKvShape(*model_.model, model_.max_model_len, options_.kv_format);
  kv_.emplace(shape);
  states_.emplace(0, 0);
  runner_.emplace(model_.model, ops_, *kv_, *states_, StepRows(options_), StepLogitRows(options_));
  int64_t scratch_bytes = runner_->scratch_bytes() + model_.model->rope_bytes();
  EngineOptions planned = options_;
  if (model_.draft != nullptr && options_.draft_rows > 0) {
    const int64_t most_wants = std::max<int64_t>(1, options_.draft_rows / 2);
    draft_.emplace(model_.draft, ops_,
                   PlanDraftBlocks(model_, options_, shape, most_wants, scratch_bytes), most_wants,
                   model_.model->config().vocab_size);
    scratch_bytes += draft_->scratch_bytes() + model_.draft->rope_bytes();
    ReserveDraft(model_, draft_->kv_bytes(), planned);
  }
  const int64_t state_floats = ModelRunner::StateFloats(*model_.model);
  const int64_t n_states =
      state_floats == 0 ? 0 : PlanStates(*model_.model, planned, state_floats, scratch_bytes);
  states_.emplace(state_floats, n_states);
  if (n_states > 0) state_pool_.emplace(n_states);
  shape.n_blocks = PlanKvBlocks(*model_.model, planned, shape, model_.max_model_len,
                                scratch_bytes + states_->bytes());
  kv_.emplace(shape);
  blocks_.emplace(shape.n_blocks);
  OpenPrefixes(shape);
  SchedulerOptions scheduling;
  scheduling.max_seqs = options_.max_seqs;
  scheduling.prefill_chunk_tokens = options_.prefill_chunk_tokens;
  scheduling.score_chunk_tokens = ScoreChunkTokens(options_);
  scheduling.max_model_len = model_.max_model_len;
  scheduling.prefix_cache = options_.prefix_cache;
  scheduling.draft_rows = std::min(options_.draft_rows, StepLogitRows(options_));
  scheduling.windows = shape.windows;
  if (state_pool_) scheduling.max_seqs = std::min(scheduling.max_seqs, n_states);
  scheduling.archive_blocks = ArchiveBlocks(shape);
  scheduler_.emplace(scheduling, *blocks_, *prefix_index_, state_pool_ ? &*state_pool_ : nullptr,
                     archive_ ? &*archive_ : nullptr);
  step_requests_.reserve(static_cast<size_t>(options_.max_seqs));
  stats_.kv_blocks_total = shape.n_blocks;
  stats_.kv_bytes = kv_->bytes() + states_->bytes() + (draft_ ? draft_->kv_bytes() : 0);
  stats_.states_total = n_states;
  stats_.scratch_bytes = scratch_bytes;
  stats_.max_seqs = options_.max_seqs;
  stats_.max_adapters = options_.max_seqs;  // the only bound
  status_.Beat();
  PublishStatus();
}

void EngineLoop::Run() {
  while (!stopping_) {
    bool worked = false;
    // Each part leaves its unfinished work to the next round when memory runs out.
    const bool has_memory = HasMemoryFor([&] {
      status_.Beat();
      Drain();
      ExpireDeadlines();
      worked = Step();
      ReleaseIdleBlocks();
      if (worked) {
        has_released_ = false;
      } else if (!has_released_ && active_.empty()) {
        ReleaseIdleMemory();
      }
    });
    HasMemoryFor([&] { PublishStatus(); });
    SendEvents();
    if (!has_memory) {
      std::this_thread::sleep_for(kPauseWithoutMemory);
    } else if (!worked && !stopping_) {
      inbox_.WaitFor(TimeToSleep());
    }
  }
  while (!active_.empty()) {
    End(active_.begin()->first, {.outcome = RequestFinished::Outcome::kCancelled});
  }
  HasMemoryFor([&] { PublishStatus(); });
  SendEvents();
}

void EngineLoop::Drain() {
  if (next_command_ == commands_.size()) {
    commands_ = inbox_.TakeAll();
    next_command_ = 0;
  }
  // Reporting a handled command must not fail, so reserve its lists first.
  left_queue_.reserve(left_queue_.size() + commands_.size() - next_command_);
  while (next_command_ < commands_.size()) {
    LoopCommand command = std::move(commands_[next_command_++]);
    std::visit([&](auto& c) { Handle(std::move(c)); }, command);
  }
}

// A request that cannot be set up (in practice for lack of memory) fails alone.
void EngineLoop::Handle(SubmitCommand command) {
  ++n_taken_;
  const uint64_t client = command.request.client;
  std::shared_ptr<EventSink> sink;
  Contain(
      [&] {
        sink = std::make_shared<EventSink>(std::move(command.sink));
        Admit(command.id, std::move(command.request), sink);
      },
      [&](ErrorCode, const char* why) { RefuseSubmission(command.id, client, sink, why); });
}

// If there is no memory for the event, destroying the sink tells its owner that the request is
// over.
void EngineLoop::RefuseSubmission(RequestId id, uint64_t client,
                                  const std::shared_ptr<EventSink>& sink, const char* why) {
  if (!scheduler_->Cancel(id)) left_queue_.push_back(client);
  if (sink == nullptr) return;
  RequestFinished how{.outcome = RequestFinished::Outcome::kFailed,
                      .code = ErrorCode::kUnavailable};
  const bool is_told = HasMemoryFor([&] {
    how.message = why;
    if (how.message == kOutOfMemory) how.reason = kOutOfMemoryReason;
    events_.push_back({sink, id, std::move(how)});
  });
  if (!is_told) *sink = nullptr;
}

void EngineLoop::Admit(RequestId id, GenerationRequest submitted, std::shared_ptr<EventSink> sink) {
  auto active = std::make_unique<Active>();
  GenerationRequest& request = active->request;
  request = std::move(submitted);
  active->sink = std::move(sink);
  active->prompt_len = static_cast<int64_t>(request.prompt.size());

  request.stop.max_new_tokens =
      std::min(request.stop.max_new_tokens, model_.max_model_len - active->prompt_len);
  ChoiceOutput::Options output;
  output.stop = request.stop;
  if (!request.stop.ignore_end_tokens) output.end_tokens = model_.end_tokens;
  output.tokenizer = model_.tokenizer.get();
  output.skip_special_tokens = request.skip_special_tokens;
  output.shown_special_tokens = request.shown_special_tokens;
  output.continues_text = request.continues_text;
  output.thought_limit = request.thought_limit;
  output.with_logprobs = request.top_logprobs >= 0;
  active->choices.reserve(static_cast<size_t>(request.n));
  for (int i = 0; i < request.n; ++i) {
    output.choice = i;
    active->choices.push_back({Sampler(request.sampling, i, request.prompt), ChoiceOutput(output)});
  }
  if (request.prompt_logprobs >= 0) {
    active->scores.reserve(request.prompt.size());
    active->scores.push_back({.token = request.prompt.front()});
    active->n_scored = 1;
  }
  scheduler_->Add({.id = id,
                   .prompt = std::move(request.prompt),
                   .n = request.n,
                   .priority = request.priority,
                   .work_class = request.work_class,
                   .client = request.client,
                   .scores_prompt = request.prompt_logprobs >= 0,
                   .needs_every_row = request.pooling && *request.pooling != Pooling::kLast,
                   .adapter = request.adapter ? request.adapter->fingerprint() : "",
                   .tenant = request.prefix_tenant,
                   .shared_tokens = request.shared_tokens});
  const bool has_deadline = request.deadline || request.queue_deadline;
  const bool has_adapter = request.adapter != nullptr;
  active_.emplace(id, std::move(active));
  n_deadlines_ += has_deadline ? 1 : 0;
  n_adapted_ += has_adapter ? 1 : 0;
}

void EngineLoop::Handle(const CancelCommand& command) {
  if (Find(command.id) == nullptr) return;
  End(command.id, {.outcome = RequestFinished::Outcome::kCancelled});
}

void EngineLoop::Handle(const EndAllCommand& command) {
  while (!active_.empty()) {
    RequestFinished how{.outcome = RequestFinished::Outcome::kFailed,
                        .code = ErrorCode::kUnavailable};
    HasMemoryFor([&] {
      how.reason = command.reason;
      how.message = command.message;
    });
    End(active_.begin()->first, std::move(how));
  }
}

void EngineLoop::Handle(const PauseCommand& command) {
  // A request that cannot be resumed would wait for ever, so end it.
  if (!HasMemoryFor([&] { scheduler_->SetPaused(command.id, command.paused); })) {
    EndWithoutMemory(command.id);
  }
}

void EngineLoop::ExpireDeadlines() {
  if (n_deadlines_ == 0) return;
  const Clock::time_point now = Clock::now();
  std::vector<RequestId> expired;
  for (const auto& [id, active] : active_) {
    const std::optional<Clock::time_point> end = EndsBy(*active);
    if (end && *end <= now) expired.push_back(id);
  }
  for (const RequestId id : expired) {
    const auto& deadline = Find(id)->request.deadline;
    End(id,
        {.outcome = RequestFinished::Outcome::kFailed,
         .code = ErrorCode::kDeadlineExceeded,
         .message = deadline && *deadline <= now ? "the request did not finish before its deadline"
                                                 : "the request reached its queue deadline before "
                                                   "it could start (--queue-timeout)"});
  }
}

// The time at which the request expires, if no other event ends it.
std::optional<EngineLoop::Clock::time_point> EngineLoop::EndsBy(const Active& active) {
  const GenerationRequest& request = active.request;
  if (active.started || !request.queue_deadline) return request.deadline;
  if (!request.deadline) return request.queue_deadline;
  return std::min(*request.deadline, *request.queue_deadline);
}

std::chrono::milliseconds EngineLoop::TimeToSleep() const {
  auto sleep = kHeartbeat;
  if (n_deadlines_ == 0) return sleep;
  const Clock::time_point now = Clock::now();
  for (const auto& [id, active] : active_) {
    const std::optional<Clock::time_point> end = EndsBy(*active);
    if (!end) continue;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*end - now);
    sleep = std::clamp(left, std::chrono::milliseconds(0), sleep);
  }
  return sleep;
}

// ---- One step

// Returns false when there was nothing to do.
bool EngineLoop::Step() {
  step_requests_.clear();
  bool has_work = true;
  // Internal errors and lack of memory end the requests of this step; the loop continues.
  Contain([&] { has_work = PlanAndRun(); },
          [&](ErrorCode code, const char* why) { FailStep(code, why); });
  return has_work;
}

// Returns false when there was nothing to do.
bool EngineLoop::PlanAndRun() {
  const BatchPlan* made = nullptr;
  if (!HasMemoryFor([&] { made = &scheduler_->Plan(); })) {
    FailNewest();
    return true;
  }
  const BatchPlan& plan = *made;
  if (plan.slices.empty()) return plan.awaits_archive;
  ++stats_.steps_total;
  step_began_ = Clock::now();
  for (const PlannedSlice& slice : plan.slices) {
    step_requests_.push_back(slice.sequence->request);
    Active& active = *Find(slice.sequence->request);
    if (!active.started) active.started = step_began_;
  }
  histograms_.step_tokens.Observe(static_cast<double>(plan.rows));
  CollectSlices(plan);
  runner_->Forward(plan, slices_);
  TimeStep(plan);
  if (model_.model->is_damaged()) {
    FailModel();
    return true;
  }
  ScorePrompts();
  scheduler_->Commit();
  TakeEmbeddings();
  SampleAndTake();
#ifndef NDEBUG
  scheduler_->CheckInvariants();
#endif
  return true;
}

void EngineLoop::CollectSlices(const BatchPlan& plan) {
  slices_.clear();
  bool adapted = false;
  for (const PlannedSlice& planned : plan.slices) {
    StepRunner::Slice slice;
    slice.planned = planned;
    Active& active = *Find(planned.sequence->request);
    slice.adapter = active.request.adapter.get();
    if (planned.sequence->scores_prompt) {
      // The row of position p predicts token p + 1. After a preemption, rows with known scores are
      // computed again for their keys and values only.
      slice.score_begin = std::max(planned.first_position, active.n_scored - 1);
      slice.score_end = std::min(planned.first_position + planned.n_tokens, active.prompt_len - 1);
    }
    if (active.request.pooling) {
      // After a preemption, positions that were added before are computed for their keys only.
      const PooledPositions pooled = PositionsOf(*active.request.pooling, active.prompt_len);
      slice.pools = true;
      slice.pool_begin = std::max({planned.first_position, pooled.begin, active.n_pooled});
      slice.pool_end = std::min(planned.first_position + planned.n_tokens, pooled.end);
      // Not at admission: thousands of requests may wait.
      active.hidden_sum.resize(static_cast<size_t>(model_.model->config().hidden_dim));
      slice.hidden_sum = active.hidden_sum;
    }
    slices_.push_back(slice);
    adapted = adapted || slice.adapter != nullptr;
  }
  // Sequences of one adapter run through it together; decodes stay ahead of prompt chunks.
  if (!adapted) return;
  std::stable_sort(slices_.begin(), slices_.end(),
                   [&](const StepRunner::Slice& a, const StepRunner::Slice& b) {
                     if (a.planned.decodes() != b.planned.decodes()) return a.planned.decodes();
                     return std::less<>()(a.adapter, b.adapter);
                   });
}

void EngineLoop::ScorePrompts() {
  jobs_.clear();
  for (const StepRunner::Slice& slice : slices_) {
    const Sequence& sequence = *slice.planned.sequence;
    for (int64_t p = slice.score_begin; p < slice.score_end; ++p) {
      StepRunner::Job job;
      job.logit_row = slice.first_score_row + p - slice.score_begin;
      job.token = sequence.tokens[static_cast<size_t>(p + 1)];
      job.n_top = Find(sequence.request)->request.prompt_logprobs;
      jobs_.push_back(std::move(job));
    }
  }
  runner_->Run(jobs_);
  size_t next = 0;
  for (const StepRunner::Slice& slice : slices_) {
    if (!slice.planned.sequence->scores_prompt) continue;
    Active& active = *Find(slice.planned.sequence->request);
    for (int64_t p = slice.score_begin; p < slice.score_end; ++p) {
      active.scores.push_back(std::move(jobs_[next++].logprob));
      ++active.n_scored;
    }
    // The scores are complete when the position after the last scored one is sampled. A preempted
    // sequence samples there again, but the scores are sent once.
    if (slice.planned.samples && !active.scores.empty()) {
      Emit(active, slice.planned.sequence->request, PromptScores{std::move(active.scores)});
      active.scores.clear();
    }
  }
}

}  // namespace tandem::engine
