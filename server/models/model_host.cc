#include "server/models/model_host.h"

#include <malloc.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "engine/base/thread_name.h"
#include "engine/base/thread_round.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxFailed = 16;
constexpr auto kFailedAreListedFor = std::chrono::hours(1);
// Interval between progress reports of a load.
constexpr auto kProgressInterval = std::chrono::milliseconds(500);
constexpr std::chrono::seconds kPauseAfterFailure{1};
constexpr std::chrono::hours kLookAtLeastEvery{1};  // for idle models; a load wakes the thread
// A new model's KV cache takes at most this fraction (1/n) of the free memory, so that a later load
// still finds some.
constexpr int64_t kPartsOfFreeMemory = 2;

// The `error.code` of a load's job.
std::string JobCodeOf(const Error& error) {
  if (!error.reason().empty()) return error.reason();
  switch (error.code()) {
    case ErrorCode::kNotFound:
      return "path_not_found";
    case ErrorCode::kUnsupported:
      return "unsupported_model";
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kDataLoss:
      return "bad_data";
    case ErrorCode::kUnavailable:
      return "out_of_memory";
    case ErrorCode::kAlreadyExists:
      return "already_exists";
    case ErrorCode::kIo:
      return "io";
    default:
      return "internal_error";
  }
}

Error InUse(const std::string& message) {
  return Error(ErrorCode::kAlreadyExists, message).WithParam("id").WithReason("in_use");
}

Error HostShuttingDown() {
  return Error(ErrorCode::kUnavailable, "the server is stopping").WithReason("shutting_down");
}

OwnEnd FailedWith(std::string message, std::string code) {
  return {JobStatus::kFailed, JobError{std::move(message), std::move(code)}, {}};
}

// The end of a load that was cancelled or that a shutdown aborted.
OwnEnd GivenUp(bool is_cancelled) {
  if (is_cancelled) return {JobStatus::kCancelled, {}, {}};
  return FailedWith("the server stopped while the model was loading", "interrupted");
}

void CallAll(const std::vector<ModelHost::OnEnd>& callbacks, const Job& job) {
  for (const ModelHost::OnEnd& callback : callbacks) {
    if (callback) RunRound("answer to an unload", [&] { callback(job); });
  }
}

}  // namespace

ModelHost::ModelHost(ModelRegistry& registry, MemoryLedger& ledger, JobSupervisor& jobs,
                     Maker maker)
    : registry_(registry), ledger_(ledger), jobs_(jobs), maker_(std::move(maker)) {
  loads_ = std::thread([this] { RunLoads(); });
  idle_ = std::thread([this] { WatchIdle(); });
}

ModelHost::~ModelHost() { Stop(); }

NameClaim ModelHost::ClaimName(const std::string& id) {
  for (const std::shared_ptr<Unloading>& leaving : unloading_) {
    if (leaving->id != id) continue;
    throw InUse("model '" + id + "' is still being unloaded (" + leaving->job_id +
                "): wait until its requests have ended");
  }
  const auto with_advice = [](const Error& error) {
    return Error(error.code(),
                 std::string(error.what()) + ": choose another id, or unload it first")
        .WithParam("id");
  };
  return WithContext(with_advice, [&] { return registry_.Claim(id); });
}

void ModelHost::ClaimMemory(Loading& loading) {
  const engine::MemoryPlan plan = maker_.plan(loading.spec);
  const auto with_advice = [](const Error& error) {
    return Error(error.code(), std::string(error.what()) +
                                   "; choose a smaller max_model_len, dtype int8 or int4, unload "
                                   "a model, or start the server with a larger --memory")
        .WithReason(error.reason());
  };
  MemoryReservation memory =
      WithContext(with_advice, [&] { return ledger_.Reserve(loading.spec.id, plan.least); });
  memory.GrowKv(plan.most_kv, kPartsOfFreeMemory);
  const std::lock_guard lock(mutex_);
  loading.claim = memory.claim();
  loading.memory = std::move(memory);
  loading.about = {plan.format, plan.weights_dtype, plan.max_model_len};
}

Job ModelHost::Load(const ModelLoadSpec& spec, const std::string& request_json, OnEnd on_end) {
  const auto loading = std::make_shared<Loading>();
  loading->spec = spec;
  loading->on_end = std::move(on_end);
  {
    const std::lock_guard lock(mutex_);
    if (stops_loading_) throw HostShuttingDown();
    loading->name = ClaimName(spec.id);
    loading_.push_back(loading);
  }
  const auto begin_job = [&] {
    const auto error = ErrorOf([&] { ClaimMemory(*loading); });
    // The job plans again and reports any fault of the files.
    if (error && error->code() == ErrorCode::kUnavailable) throw Error(*error);
    return jobs_.BeginOwn(JobType::kModelLoad, request_json, [this, weak = std::weak_ptr(loading)] {
      if (const auto cancelled = weak.lock()) CancelLoad(cancelled);
    });
  };
  Job job = UndoOnFailure(begin_job, [&] {
    const std::lock_guard lock(mutex_);
    std::erase(loading_, loading);
    loading->name.Release();
  });
  {
    const std::lock_guard lock(mutex_);
    UntilMemorySuffices([&] { loading->job_id = job.id; });
    std::erase_if(failed_, [&](const Failed& failed) { return failed.model.id == spec.id; });
    // StopLoading or Cancel may have run since BeginOwn; the thread of loads may be gone.
    if (!stops_loading_ && !loading->is_cancelled) {
      UntilMemorySuffices([&] { queue_.push_back(loading); });
      wake_.notify_all();
      return job;
    }
  }
  loading->memory.Release();
  return EndLoad(loading, GivenUp(loading->is_cancelled));
}

void ModelHost::CancelLoad(const std::shared_ptr<Loading>& loading) {
  {
    const std::lock_guard lock(mutex_);
    loading->is_cancelled = true;
    const auto queued = std::find(queue_.begin(), queue_.end(), loading);
    if (queued == queue_.end()) return;  // Load or LoadOne checks is_cancelled
    queue_.erase(queued);
  }
  loading->memory.Release();
  EndLoad(loading, GivenUp(true));
}

void ModelHost::RunLoads() {
  NameThisThread("tandem-loads");
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stops_loading_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::shared_ptr<Loading> loading = queue_.front();
    queue_.pop_front();
    lock.unlock();
    const bool has_ended = RunRound("load of a model", [&] { LoadOne(loading); });
    if (!has_ended) RunRound("end of a load", [&] { EndWithoutMemory(loading); });
    lock.lock();
  }
}

void ModelHost::LoadOne(const std::shared_ptr<Loading>& loading) {
  const auto begin = Clock::now();
  const auto stop_if_asked = [&] {
    bool stops = false;
    {
      const std::lock_guard lock(mutex_);
      stops = stops_loading_;
    }
    if (stops || loading->is_cancelled)
      throw Error(ErrorCode::kCancelled, "the load was cancelled");
  };
  OwnEnd end;
  const std::optional<Error> error = Attempt([&] {
    stop_if_asked();
    jobs_.StartOwn(loading->job_id);
    auto reported_at = Clock::now();
    const auto progress = [&](double fraction) {
      stop_if_asked();
      loading->progress = fraction;
      if (Clock::now() - reported_at < kProgressInterval) return;
      reported_at = Clock::now();
      jobs_.ReportOwn(loading->job_id, fraction,
                      "packed " + std::to_string(static_cast<int>(100 * fraction)) + " %");
    };
    // Planning failed in Load. Retry: it may succeed now, and its error says why otherwise.
    if (loading->memory.claim().total() == 0) ClaimMemory(*loading);
    const auto model = maker_.make(loading->spec, std::move(loading->memory), progress);
    Json result;
    result["model"] = model->id;
    result["dtype"] = model->loaded().weights_dtype;
    result["max_model_len"] = model->loaded().max_model_len;
    result["memory_bytes"] = model->memory.claim().total();
    result["seconds"] = std::chrono::duration<double>(Clock::now() - begin).count();
    end.result_json = result.dump();  // first: after Publish nothing may fail
    std::vector<NameClaim> names;
    names.push_back(std::move(loading->name));
    registry_.Publish(model, std::move(names));
  });
  if (error) {
    end = error->code() == ErrorCode::kCancelled ? GivenUp(loading->is_cancelled)
                                                 : FailedWith(error->what(), JobCodeOf(*error));
  }
  loading->memory.Release();
  EndLoad(loading, std::move(end));
}

// Ends a load whose own end lacked memory. EndLoad has not begun.
void ModelHost::EndWithoutMemory(const std::shared_ptr<Loading>& loading) {
  loading->memory.Release();
  OwnEnd end;
  UntilMemorySuffices(
      [&] { end = FailedWith("not enough memory to load the model", "out_of_memory"); });
  EndLoad(loading, std::move(end));
}

// Completes without an exception when memory is short: it waits for the memory of the job's end.
Job ModelHost::EndLoad(const std::shared_ptr<Loading>& loading, OwnEnd end) {
  const std::string& id = loading->spec.id;
  {
    const std::lock_guard lock(mutex_);
    std::erase(loading_, loading);
    loading->name.Release();
    // Without memory the list lacks this failure; the job has it.
    if (end.status == JobStatus::kFailed) HasMemoryFor([&] { ListFailure(*loading, end); });
  }
  wake_.notify_all();  // WatchIdle may have one more model to watch
  HasMemoryFor([&] {
    spdlog::log(end.status == JobStatus::kFailed ? spdlog::level::warn : spdlog::level::info,
                "model_load_ended model={} status={}{}", id, NameOf(end.status),
                end.error ? " reason=\"" + end.error->message + "\"" : "");
  });
  Job job;
  UntilMemorySuffices([&] { job = jobs_.EndOwn(loading->job_id, end); });
  if (loading->on_end) RunRound("answer to a load", [&] { loading->on_end(job); });
  return job;
}

void ModelHost::ListFailure(const Loading& loading, const OwnEnd& end) {
  Failed failed;
  failed.model = {.id = loading.spec.id,
                  .state = Other::State::kFailed,
                  .job_id = loading.job_id,
                  .about = loading.about,
                  .error = end.error->message};
  failed.at = Clock::now();
  failed_.push_back(std::move(failed));
  ForgetOldFailures();
}

void ModelHost::ForgetOldFailures() {
  const auto now = Clock::now();
  std::erase_if(failed_,
                [&](const Failed& failed) { return now - failed.at > kFailedAreListedFor; });
  while (failed_.size() > kMaxFailed) failed_.pop_front();
}

Job ModelHost::Unload(const std::string& name, bool force, const std::string& request_json,
                      OnEnd on_end) {
  const std::string reason = "model '" + name.substr(0, 120) + "' is being unloaded";
  std::unique_lock lock(mutex_);
  if (is_stopped_) throw HostShuttingDown();
  // A served model comes first: a job may have published it under the name of a leaving one.
  if (!registry_.Contains(name)) {
    for (const std::shared_ptr<Unloading>& leaving : unloading_) {
      if (std::find(leaving->names.begin(), leaving->names.end(), name) == leaving->names.end()) {
        continue;
      }
      leaving->on_end.push_back(std::move(on_end));
      if (const auto engine = leaving->engine.lock(); engine && force) engine->EndAll(reason);
      return *jobs_.Find(leaving->job_id);
    }
    if (registry_.IsClaimed(name)) {
      const auto coming = std::find_if(loading_.begin(), loading_.end(), [&](const auto& loading) {
        return loading->spec.id == name && !loading->job_id.empty();
      });
      const std::string advice =
          coming == loading_.end() ? "" : ": cancel job " + (*coming)->job_id + " instead";
      throw InUse("model '" + name + "' is still being loaded" + advice);
    }
  }
  if (const auto alias = registry_.FindAlias(name)) {
    throw InUse("'" + name + "' is an alias of '" + alias->target + "': unload '" + alias->target +
                "'");
  }
  const std::shared_ptr<const ServedModel> model = registry_.Look(name);
  if (model->base) {
    throw InUse("model '" + name +
                "' is an adapter: unload it with POST /admin/adapters/unload, or " + "its base, '" +
                model->base->id + "'");
  }
  if (model->pinned && !force)
    throw InUse("model '" + name + "' is pinned: set force to unload it");
  Job job = BeginUnload(*model, request_json, "it was unloaded", on_end, std::nullopt);
  lock.unlock();
  if (IsFinished(job.status)) {
    if (on_end) on_end(job);
  } else if (force) {
    model->engine->EndAll(reason);
  }
  return job;
}

Job ModelHost::BeginUnload(const ServedModel& model, const std::string& request_json,
                           const std::string& why, const OnEnd& on_end,
                           std::optional<Clock::time_point> idle_since) {
  const auto leaving = std::make_shared<Unloading>();
  leaving->id = model.id;
  for (const auto& [name, served] : registry_.List()) {
    if (served.get() == &model) leaving->names.push_back(name);
  }
  leaving->engine = model.engine;
  leaving->figures = model.engine->figures();
  leaving->about = {model.loaded().format, model.loaded().weights_dtype,
                    model.loaded().max_model_len};
  leaving->pinned = model.pinned;
  leaving->idle_unload_s = model.idle_unload_s;
  leaving->memory = model.memory.claim();
  leaving->on_end.push_back(on_end);
  // Create the job before removing the model: if the disk is full, BeginOwn throws and it stays.
  unloading_.reserve(unloading_.size() + 1);
  Job job = jobs_.BeginOwn(JobType::kModelUnload, request_json, nullptr);
  bool is_removed = false;
  UndoOnFailure(
      [&] {
        leaving->job_id = job.id;
        job = jobs_.StartOwn(job.id);
        is_removed = registry_.Remove(
            model, [this, leaving] { OnGone(leaving); }, why, idle_since);
      },
      [&] { UntilMemorySuffices([&] {
              jobs_.EndOwn(job.id, {JobStatus::kCancelled, {}, {}});
            }); });
  if (!is_removed) {
    UntilMemorySuffices([&] {
      job = jobs_.EndOwn(
          job.id, idle_since
                      ? OwnEnd{JobStatus::kCancelled, {}, {}}
                      : FailedWith("model '" + model.id + "' is already unloaded: it was deleted",
                                   "model_not_found"));
    });
    return job;
  }
  spdlog::info("model_unloading model={} reason=\"{}\"", model.id, why);
  unloading_.push_back(leaving);
  return job;
}

// Runs on the registry's thread.
void ModelHost::OnGone(const std::shared_ptr<Unloading>& leaving) {
  // Return the model's small allocations to the system too.
  ::malloc_trim(0);
  Job job;
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return;
    std::erase(unloading_, leaving);
    leaving->figures.reset();
    UntilMemorySuffices([&] {
      const Json result = {{"model", leaving->id}, {"freed_bytes", leaving->memory.total()}};
      job = jobs_.EndOwn(leaving->job_id, {JobStatus::kSucceeded, {}, result.dump()});
    });
  }
  spdlog::info("model_unloaded model={}", leaving->id);
  CallAll(leaving->on_end, job);
}

void ModelHost::WatchIdle() {
  NameThisThread("tandem-idle");
  std::unique_lock lock(mutex_);
  while (!stops_loading_) {
    Clock::time_point again = Clock::now() + kPauseAfterFailure;
    RunRound("look for idle models",
             [&] { again = UnloadIdle().value_or(Clock::now() + kLookAtLeastEvery); });
    wake_.wait_until(lock, again);
  }
}

// Unloads models that have been idle for idle_unload_s. Returns the earliest time at which another
// one may be. A model in use now needs at least its whole idle time again.
std::optional<ModelHost::Clock::time_point> ModelHost::UnloadIdle() {
  std::optional<Clock::time_point> again;
  const Clock::time_point now = Clock::now();
  for (const auto& [name, model] : registry_.List()) {
    if (name != model->id || model->idle_unload_s <= 0 || model->pinned) continue;
    const std::chrono::seconds patience(model->idle_unload_s);
    const std::optional<Clock::time_point> since = registry_.IdleSince(*model);
    const auto end = since.value_or(now) + patience;
    if (end > now) {
      again = std::min(again.value_or(end), end);
      continue;
    }
    const std::string why = "it was unloaded after " + std::to_string(model->idle_unload_s) +
                            " s without a request (idle_unload_s)";
    const Json request = {{"id", model->id}, {"reason", "idle"}};
    bool is_unloading = false;
    const auto error = ErrorOf([&, &model = model] {
      is_unloading = !IsFinished(BeginUnload(*model, request.dump(), why, nullptr, since).status);
    });
    if (is_unloading) continue;
    // Most likely a full disk. The model stays; check again after another idle time.
    if (error) {
      spdlog::warn("idle model stays loaded model={} reason=\"{}\"", model->id, error->what());
    }
    again = std::min(again.value_or(now + patience), now + patience);
  }
  return again;
}

ModelHost::Listing ModelHost::List() const {
  Listing listing;
  const std::lock_guard lock(mutex_);
  listing.served = registry_.List();
  const auto is_served = [&](const std::string& id) {
    return std::any_of(listing.served.begin(), listing.served.end(),
                       [&](const ModelRegistry::Entry& entry) { return entry.name == id; });
  };
  for (const std::shared_ptr<Loading>& loading : loading_) {
    // A model that is served already is about to leave this list.
    if (loading->job_id.empty() || is_served(loading->spec.id)) continue;
    listing.others.push_back({.id = loading->spec.id,
                              .state = Other::State::kLoading,
                              .job_id = loading->job_id,
                              .about = loading->about,
                              .memory = loading->claim,
                              .progress = loading->progress,
                              .pinned = loading->spec.pinned,
                              .idle_unload_s = loading->spec.idle_unload_s});
  }
  for (const std::shared_ptr<Unloading>& leaving : unloading_) {
    const engine::EngineStats stats = leaving->figures->stats();
    listing.others.push_back({.id = leaving->id,
                              .state = Other::State::kUnloading,
                              .job_id = leaving->job_id,
                              .about = leaving->about,
                              .memory = leaving->memory,
                              .running = stats.requests_running,
                              .waiting = stats.requests_waiting,
                              .pinned = leaving->pinned,
                              .idle_unload_s = leaving->idle_unload_s});
  }
  const auto now = Clock::now();
  for (const Failed& failed : failed_) {
    const bool is_old = now - failed.at > kFailedAreListedFor;
    if (!is_old && !is_served(failed.model.id)) listing.others.push_back(failed.model);
  }
  return listing;
}

void ModelHost::StopLoading() {
  {
    const std::lock_guard lock(mutex_);
    stops_loading_ = true;
  }
  wake_.notify_all();
  for (std::thread* thread : {&loads_, &idle_}) {
    if (thread->joinable()) thread->join();
  }
}

void ModelHost::Stop() {
  StopLoading();
  std::vector<std::shared_ptr<Unloading>> left;
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    left.swap(unloading_);
  }
  for (const std::shared_ptr<Unloading>& leaving : left) {
    const Job job = jobs_.EndOwn(
        leaving->job_id,
        FailedWith("the server stopped while requests still ran on the model", "interrupted"));
    CallAll(leaving->on_end, job);
  }
}

}  // namespace tandem::server
