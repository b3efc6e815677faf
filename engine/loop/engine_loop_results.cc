// The part of EngineLoop that follows sampling: tokens, ends and failures of requests, their events
// and the statistics.

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/out_of_memory.h"
#include "engine/loop/engine_loop.h"

namespace tandem::engine {

// ---- Tokens

void EngineLoop::TakeToken(Active& active, Sampled who, StepRunner::Job& job) {
  Sequence& sequence = *scheduler_->Choices(who.request)[static_cast<size_t>(who.choice)];
  if (active.request.stop.max_new_tokens == 0) {
    if (!active.request.next_tokens.empty() && AwaitsNextScores(active, who.request, job)) return;
    FinishChoice(active, sequence, {.reason = ChoiceFinished::Reason::kLength});
    return;
  }
  if (job.fault) {
    return EndFailed(who.request, job.fault->code(), job.fault->what());
  }
  if (job.token < 0 && !job.is_complete) return EndWithoutToken(active, who.request);
  Choice& choice = active.choices[static_cast<size_t>(who.choice)];
  if (job.token < 0) {
    ChoiceOutput::End end = choice.output.Complete();
    SendDelta(active, who.request, choice);
    return FinishChoice(active, sequence, std::move(end));
  }
  CountToken(active, choice);
  choice.sampler.Accept(job.token);
  std::optional<ChoiceOutput::End> end =
      choice.output.Push(job.token, std::move(job.logprob), job.is_complete);
  SendDelta(active, who.request, choice);
  if (end) {
    FinishChoice(active, sequence, std::move(*end));
  } else {
    scheduler_->Append(sequence, job.token);
  }
}

void EngineLoop::SendDelta(const Active& active, RequestId id, Choice& choice) {
  if (std::optional<TextDelta> delta = choice.output.TakeDelta()) {
    Emit(active, id, std::move(*delta));
  }
}

// No token could be drawn.
void EngineLoop::EndWithoutToken(const Active& active, RequestId id) {
  RequestFinished how{.outcome = RequestFinished::Outcome::kFailed,
                      .code = ErrorCode::kInvalidArgument};
  if (active.request.grammar) {
    how.message =
        "the grammar and the request's other fields (logit_bias, min_tokens) exclude every token";
  } else if (!active.request.sampling.logit_bias.empty()) {
    how.message = "logit_bias excludes every token: allow at least one";
  } else {
    how.code = ErrorCode::kInternal;
    how.message = kNotFinite;
  }
  End(id, std::move(how));
}

void EngineLoop::FinishChoice(Active& active, Sequence& sequence, ChoiceOutput::End end) {
  const RequestId id = sequence.request;
  ChoiceFinished finished;
  finished.choice = sequence.choice;
  finished.reason = end.reason;
  finished.stop_string = std::move(end.stop_string);
  finished.stop_token = end.stop_token;
  finished.usage.prompt_tokens = active.prompt_len;
  finished.usage.cached_tokens = sequence.cached_len;
  finished.usage.completion_tokens =
      active.choices[static_cast<size_t>(sequence.choice)].output.n_tokens();
  finished.usage.accepted_draft_tokens = sequence.accepted_tokens;
  finished.usage.rejected_draft_tokens = sequence.draft_tokens - sequence.accepted_tokens;
  Emit(active, id, std::move(finished));
  scheduler_->Finish(sequence);
  if (++active.n_finished == active.request.n) {
    End(id, {.outcome = RequestFinished::Outcome::kCompleted});
  }
}

void EngineLoop::CountPrompt(Active& active) {
  if (active.prompt_counted) return;
  active.prompt_counted = true;
  stats_.prompt_tokens_total += active.prompt_len;
}

// One clock reading per step serves all its tokens.
void EngineLoop::CountToken(Active& active, Choice& choice) {
  ++stats_.generation_tokens_total;
  ++active.n_generated;
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  if (!active.first_token) {
    active.first_token = sampled_at_;
    histograms_.time_to_first_token_s.Observe(seconds(sampled_at_ - *active.request.arrival));
  }
  if (choice.last_token) {
    histograms_.inter_token_s.Observe(seconds(sampled_at_ - *choice.last_token));
  }
  choice.last_token = sampled_at_;
  active.last_token = sampled_at_;
}

RequestTimings EngineLoop::TimingsOf(const Active& active, Clock::time_point now) const {
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  const Clock::time_point arrival = *active.request.arrival;
  RequestTimings timings;
  timings.e2e_s = seconds(now - arrival);
  timings.queue_s = seconds(active.started.value_or(now) - arrival);
  if (active.started) {
    timings.prefill_s = seconds(active.first_token.value_or(now) - *active.started);
  }
  if (active.first_token) {
    timings.time_to_first_s = seconds(*active.first_token - arrival);
    timings.decode_s = seconds(active.last_token - *active.first_token);
  }
  return timings;
}

void EngineLoop::CountCompleted(const Active& active, const RequestTimings& timings) {
  histograms_.e2e_s.Observe(timings.e2e_s);
  histograms_.queue_s.Observe(timings.queue_s);
  histograms_.prefill_s.Observe(timings.prefill_s);
  histograms_.decode_s.Observe(timings.decode_s);
  histograms_.inference_s.Observe(timings.prefill_s + timings.decode_s);
  histograms_.prompt_tokens.Observe(static_cast<double>(active.prompt_len));
  histograms_.generation_tokens.Observe(static_cast<double>(active.n_generated));
  histograms_.params_n.Observe(active.request.n);
  histograms_.params_max_tokens.Observe(static_cast<double>(active.request.stop.max_new_tokens));
}

// Fails the requests of the step, or all requests if the step was not planned yet.
void EngineLoop::FailStep(ErrorCode code, std::string_view message) {
  spdlog::error("engine step failed requests={} error=\"{}\"", step_requests_.size(), message);
  if (step_requests_.empty()) {
    while (!active_.empty()) EndFailed(active_.begin()->first, code, message);
  }
  for (const RequestId id : step_requests_) {
    if (Find(id) != nullptr) EndFailed(id, code, message);
  }
}

// Zeros replaced weights: neither this step's results nor any later step's may leave.
void EngineLoop::FailModel() {
  spdlog::error(
      "model_damaged requests={} reason=\"the packed file was truncated or became unreadable while "
      "it was mapped\" path={}",
      active_.size(), model_.model->packed_path().string());
  const std::string message =
      "the model's weights became unreadable on disk; the server unloads the model, load it again";
  status_.SetFailed(message);
  Handle(EndAllCommand{message, "model_damaged"});
}

// Planning ran out of memory: end the newest request and free its blocks.
void EngineLoop::FailNewest() {
  const auto newest =
      std::max_element(active_.begin(), active_.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
  if (newest != active_.end()) EndWithoutMemory(newest->first);
}

void EngineLoop::EndWithoutMemory(RequestId id) {
  if (Find(id) != nullptr) EndFailed(id, ErrorCode::kUnavailable, kOutOfMemory);
}

void EngineLoop::EndFailed(RequestId id, ErrorCode code, std::string_view message) {
  RequestFinished how{.outcome = RequestFinished::Outcome::kFailed, .code = code};
  HasMemoryFor([&] {
    if (message == kOutOfMemory) how.reason = kOutOfMemoryReason;
    how.message = message;
  });
  End(id, std::move(how));
}

// ---- Events

EngineLoop::Active* EngineLoop::Find(RequestId id) {
  const auto found = active_.find(id);
  return found == active_.end() ? nullptr : found->second.get();
}

void EngineLoop::Emit(const Active& active, RequestId id, GenerationEvent event) {
  events_.push_back({active.sink, id, std::move(event)});
}

// Emits the terminal event and erases the request. Never fails: if there is no memory for the
// event, destroying the sink tells its owner that the request is over.
void EngineLoop::End(RequestId id, RequestFinished how) {
  const auto found = active_.find(id);
  TANDEM_CHECK(found != active_.end());
  scheduler_->Cancel(id);
  const Active& active = *found->second;
  n_deadlines_ -= active.request.deadline || active.request.queue_deadline ? 1 : 0;
  n_adapted_ -= active.request.adapter ? 1 : 0;
  const Clock::time_point now = Clock::now();
  ends_.Add(now);
  how.timings = TimingsOf(active, now);
  if (how.outcome == RequestFinished::Outcome::kCompleted) CountCompleted(active, how.timings);
  if (!HasMemoryFor([&] { Emit(active, id, std::move(how)); })) *active.sink = nullptr;
  active_.erase(found);
}

// Runs last in a step, so the statistics already include every end it reports.
void EngineLoop::SendEvents() {
  // By index, because ending a request adds an event.
  for (size_t i = 0; i < events_.size(); ++i) {
    Outgoing event = std::move(events_[i]);
    if (!*event.sink) continue;
    if (HasMemoryFor([&] { (*event.sink)(event.request, std::move(event.event)); })) continue;
    // An answer with a gap would be wrong, so the request gets no further events.
    *event.sink = nullptr;
    EndWithoutMemory(event.request);
  }
  events_.clear();
}

void EngineLoop::ListAdapters() {
  stats_.running_adapters.clear();
  stats_.waiting_adapters.clear();
  if (n_adapted_ == 0) return;
  for (const auto& [id, active] : active_) {
    if (!active->request.adapter) continue;
    const auto choices = scheduler_->Choices(id);
    const bool runs = std::any_of(choices.begin(), choices.end(), [](const auto& choice) {
      return choice->phase == SequencePhase::kRunning;
    });
    std::vector<std::string>& names = runs ? stats_.running_adapters : stats_.waiting_adapters;
    // Runs in every step: compares the few names before it copies them.
    const std::string& name = active->request.adapter_name;
    const auto at = std::lower_bound(names.begin(), names.end(), name);
    if (at == names.end() || *at != name) names.insert(at, name);
  }
}

void EngineLoop::PublishStatus() {
  const Scheduler::Counters& counters = scheduler_->counters();
  stats_.requests_running = scheduler_->num_running();
  stats_.requests_waiting = scheduler_->num_waiting();
  stats_.batch_running = scheduler_->num_running_batch();
  stats_.batch_waiting = scheduler_->num_waiting_batch();
  stats_.kv_blocks_used = blocks_->capacity_blocks() - blocks_->num_free();
  if (state_pool_) {
    stats_.states_used = state_pool_->num_held();
    stats_.state_snapshots = state_pool_->num_snapshots();
  }
  stats_.prefix_query_tokens_total = counters.prefix_query_tokens;
  stats_.prefix_hit_tokens_total = counters.prefix_hit_tokens;
  stats_.preemptions_total = counters.preemptions;
  stats_.disk_blocks_read_total = counters.archive_blocks;
  if (archive_) {
    stats_.disk_blocks = archive_->files().n_files();
    stats_.disk_blocks_written_total = archive_->files().writes_total();
  }
  stats_.draft_tokens_total = counters.draft_tokens;
  stats_.accepted_draft_tokens_total = counters.accepted_tokens;
  stats_.requests_ended_per_second = ends_.PerSecond(Clock::now());
  ListAdapters();
  // The entries must survive a lack of memory: the next round publishes them.
  left_queue_.reserve(left_queue_.size() + scheduler_->num_left_queue());
  const std::vector<uint64_t> left = scheduler_->TakeLeftQueue();
  left_queue_.insert(left_queue_.end(), left.begin(), left.end());
  status_.Publish(stats_, histograms_, scheduler_->num_queued_requests(), n_taken_, left_queue_);
  n_taken_ = 0;
  left_queue_.clear();
}

}  // namespace tandem::engine
