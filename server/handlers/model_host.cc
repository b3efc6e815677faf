#include "server/handlers/model_host.h"

#include <malloc.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/thread_name.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxFailed = 16;
constexpr auto kFailedAreListedFor = std::chrono::hours(1);
// How often a load's progress is written down.
constexpr auto kProgressInterval = std::chrono::milliseconds(500);
// A new model takes no more than this part of what is free for keys and values: the next load finds
// something too.
constexpr int64_t kPartsOfFreeMemory = 2;

// What `error.code` of a job says.
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

JobSupervisor::OwnEnd FailedWith(std::string message, std::string code) {
  return {JobStatus::kFailed, JobError{std::move(message), std::move(code)}, {}};
}

void CallAll(const std::vector<ModelHost::OnEnd>& callbacks, const Job& job) {
  for (const ModelHost::OnEnd& callback : callbacks) {
    if (callback) callback(job);
  }
}

}  // namespace

ModelHost::ModelHost(ModelRegistry& registry, MemoryLedger& ledger, JobSupervisor& jobs,
                     Maker maker)
    : registry_(registry), ledger_(ledger), jobs_(jobs), maker_(std::move(maker)) {
  thread_ = std::thread([this] { Run(); });
}

ModelHost::~ModelHost() { Stop(); }

void ModelHost::ThrowIfTaken(const std::string& id) const {
  if (registry_.Contains(id) || loading_.contains(id)) {
    throw Error(ErrorCode::kAlreadyExists, "a model named '" + id + "' is " +
                                               (loading_.contains(id) ? "being loaded" : "served") +
                                               " already: choose another id, or unload it first")
        .WithParam("id");
  }
  if (const auto leaving = unloading_.find(id); leaving != unloading_.end()) {
    throw InUse("model '" + id + "' is still being unloaded (" + leaving->second.job_id +
                "): its requests have to end first");
  }
}

void ModelHost::Claim(Loading& loading) {
  const engine::MemoryPlan plan = maker_.plan(loading.spec);
  MemoryReservation memory;
  try {
    memory = ledger_.Reserve(loading.spec.id, plan.least);
  } catch (const Error& error) {
    throw Error(error.code(), std::string(error.what()) +
                                  "; choose a smaller max_model_len, dtype int8 or int4, unload a "
                                  "model, or start the server with a larger --memory")
        .WithReason(error.reason());
  }
  memory.GrowKv(plan.most_kv, kPartsOfFreeMemory);
  const std::lock_guard lock(mutex_);
  loading.memory = std::move(memory);
  loading.about = {plan.format, plan.weights_dtype, plan.max_model_len};
}

Job ModelHost::Load(const ModelLoadSpec& spec, const std::string& request_json, OnEnd on_end) {
  const auto loading = std::make_shared<Loading>();
  loading->spec = spec;
  loading->on_end = std::move(on_end);
  {
    const std::lock_guard lock(mutex_);
    if (stops_loading_) {
      throw Error(ErrorCode::kUnavailable, "the server is stopping").WithReason("shutting_down");
    }
    ThrowIfTaken(spec.id);
    loading_[spec.id] = loading;  // nobody else may take the name meanwhile
  }
  try {
    try {
      Claim(*loading);
    } catch (const Error& error) {
      // What is wrong with the files, the job will find again and say.
      if (error.code() == ErrorCode::kUnavailable) throw;
    }
    const Job job =
        jobs_.BeginOwn(JobType::kModelLoad, request_json, [this, weak = std::weak_ptr(loading)] {
          if (const auto cancelled = weak.lock()) cancelled->is_cancelled = true;
          { const std::lock_guard lock(mutex_); }  // so that no wake-up falls between
          wake_.notify_all();
        });
    const std::lock_guard lock(mutex_);
    loading->job_id = job.id;
    std::erase_if(failed_, [&](const Failed& failed) { return failed.model.id == spec.id; });
    queue_.push_back(loading);
    wake_.notify_all();
    return job;
  } catch (...) {
    const std::lock_guard lock(mutex_);
    loading_.erase(spec.id);
    throw;
  }
}

void ModelHost::Run() {
  NameThisThread("tandem-loads");
  std::unique_lock lock(mutex_);
  while (!is_stopped_) {
    // Those cancelled before their turn do not wait for it.
    auto next = std::find_if(queue_.begin(), queue_.end(),
                             [](const auto& queued) { return queued->is_cancelled.load(); });
    if (next == queue_.end()) next = queue_.begin();
    if (next != queue_.end()) {
      const std::shared_ptr<Loading> loading = *next;
      queue_.erase(next);
      lock.unlock();
      LoadOne(loading);
      lock.lock();
      continue;
    }
    if (stops_loading_) return;
    if (const std::optional<Clock::time_point> again = UnloadIdle()) {
      wake_.wait_until(lock, *again);
    } else {
      wake_.wait(lock);
    }
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
    if (stops || loading->is_cancelled) throw Error(ErrorCode::kCancelled, "not wanted any more");
  };
  JobSupervisor::OwnEnd end;
  try {
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
    // Planning has failed before. It may work by now; if not, this says why.
    if (loading->memory.claim().total() == 0) Claim(*loading);
    const auto model = maker_.make(loading->spec, std::move(loading->memory), progress);
    Json result;
    result["model"] = model->id;
    result["dtype"] = model->loaded().weights_dtype;
    result["max_model_len"] = model->loaded().max_model_len;
    result["memory_bytes"] = model->memory.claim().total();
    result["seconds"] = std::chrono::duration<double>(Clock::now() - begin).count();
    registry_.Add(model);
    end.result_json = result.dump();
  } catch (const Error& error) {
    const bool is_cancelled = error.code() == ErrorCode::kCancelled;
    if (is_cancelled && loading->is_cancelled) {
      end.status = JobStatus::kCancelled;
    } else if (is_cancelled) {
      end = FailedWith("the server stopped while the model was loading", "interrupted");
    } else {
      end = FailedWith(error.what(), JobCodeOf(error));
    }
  } catch (const std::bad_alloc&) {
    end = FailedWith("not enough memory to load the model", "out_of_memory");
  } catch (const std::exception& error) {
    end = FailedWith(error.what(), "internal_error");
  }
  loading->memory.Release();
  EndLoad(loading, std::move(end));
}

void ModelHost::EndLoad(const std::shared_ptr<Loading>& loading, JobSupervisor::OwnEnd end) {
  const std::string& id = loading->spec.id;
  {
    const std::lock_guard lock(mutex_);
    loading_.erase(id);
    if (end.status == JobStatus::kFailed) {
      Failed failed;
      failed.model = {.id = id,
                      .state = Other::State::kFailed,
                      .job_id = loading->job_id,
                      .about = loading->about,
                      .error = end.error->message};
      failed.at = Clock::now();
      failed_.push_back(std::move(failed));
      ForgetOldFailures();
    }
  }
  spdlog::log(end.status == JobStatus::kFailed ? spdlog::level::warn : spdlog::level::info,
              "model_load_ended model={} status={}{}", id, NameOf(end.status),
              end.error ? " reason=\"" + end.error->message + "\"" : "");
  try {
    const Job job = jobs_.EndOwn(loading->job_id, std::move(end));
    if (loading->on_end) loading->on_end(job);
  } catch (const Error& error) {
    // A full disk. The model is what it is; the next server calls the job interrupted.
    spdlog::error("job not recorded id={} reason=\"{}\"", loading->job_id, error.what());
  }
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
  const std::lock_guard lock(mutex_);
  if (is_stopped_) {
    throw Error(ErrorCode::kUnavailable, "the server is stopping").WithReason("shutting_down");
  }
  if (const auto leaving = unloading_.find(name); leaving != unloading_.end()) {
    leaving->second.on_end.push_back(std::move(on_end));
    if (const auto engine = leaving->second.engine.lock(); engine && force) engine->EndAll(reason);
    return *jobs_.Find(leaving->second.job_id);
  }
  if (const auto coming = loading_.find(name); coming != loading_.end()) {
    throw InUse("model '" + name + "' is still being loaded: cancel job " + coming->second->job_id +
                " instead");
  }
  const std::shared_ptr<const ServedModel> model = registry_.Look(name);
  if (model->base) {
    throw InUse("model '" + name + "' is an adapter and leaves with its base, '" + model->base->id +
                "'");
  }
  if (model->pinned && !force) throw InUse("model '" + name + "' is pinned: unload it with force");
  const std::string job_id = jobs_.BeginOwn(JobType::kModelUnload, request_json, nullptr).id;
  jobs_.StartOwn(job_id);
  BeginUnload(model, job_id, std::move(on_end), "it was unloaded");
  if (force) model->engine->EndAll(reason);
  return *jobs_.Find(job_id);
}

// REQUIRES: mutex_ held.
void ModelHost::BeginUnload(const std::shared_ptr<const ServedModel>& model,
                            const std::string& job_id, OnEnd on_end, const std::string& why) {
  const std::string id = model->id;
  Unloading& leaving =
      unloading_
          .emplace(id, Unloading{.job_id = job_id,
                                 .engine = model->engine,
                                 .figures = model->engine->figures(),
                                 .about = {model->loaded().format, model->loaded().weights_dtype,
                                           model->loaded().max_model_len},
                                 .pinned = model->pinned,
                                 .idle_unload_s = model->idle_unload_s,
                                 .bytes = model->memory.claim().total(),
                                 .on_end = {}})
          .first->second;
  leaving.on_end.push_back(std::move(on_end));
  spdlog::info("model_unloading model={} reason=\"{}\"", id, why);
  registry_.Remove(
      id, [this, id] { OnGone(id); }, why);
}

// On the registry's thread.
void ModelHost::OnGone(const std::string& id) {
  // What the model had allocated in small pieces goes back to the system, too.
  ::malloc_trim(0);
  Job job;
  std::vector<OnEnd> callbacks;
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return;
    const auto leaving = unloading_.find(id);
    if (leaving == unloading_.end()) return;
    const Json result = {{"model", id}, {"freed_bytes", leaving->second.bytes}};
    callbacks = EndUnload(id, {JobStatus::kSucceeded, {}, result.dump()}, job);
  }
  spdlog::info("model_unloaded model={}", id);
  CallAll(callbacks, job);
}

std::vector<ModelHost::OnEnd> ModelHost::EndUnload(const std::string& id, JobSupervisor::OwnEnd end,
                                                   Job& job) {
  auto node = unloading_.extract(id);
  try {
    job = jobs_.EndOwn(node.mapped().job_id, std::move(end));
  } catch (const Error& error) {
    spdlog::error("job not recorded id={} reason=\"{}\"", node.mapped().job_id, error.what());
    return {};
  }
  return std::move(node.mapped().on_end);
}

// When a model's time may be over. One that is in use now cannot be idle for long enough before its
// whole time has passed once more.
std::optional<ModelHost::Clock::time_point> ModelHost::UnloadIdle() {
  std::optional<Clock::time_point> again;
  const Clock::time_point now = Clock::now();
  for (const auto& [name, model] : registry_.List()) {
    if (name != model->id || model->idle_unload_s <= 0 || model->pinned) continue;
    const std::chrono::seconds patience(model->idle_unload_s);
    const auto end = registry_.IdleSince(model->id).value_or(now) + patience;
    if (end > now) {
      again = std::min(again.value_or(end), end);
      continue;
    }
    const std::string why = "it was unloaded after " + std::to_string(model->idle_unload_s) +
                            " s without a request (idle_unload_s)";
    const Json request = {{"id", model->id}, {"reason", "idle"}};
    try {
      const Job job = jobs_.BeginOwn(JobType::kModelUnload, request.dump(), nullptr);
      jobs_.StartOwn(job.id);
      BeginUnload(model, job.id, nullptr, why);
    } catch (const Error& error) {
      // Most likely a full disk. The model stays; look again when as much time has passed.
      spdlog::warn("idle model stays loaded model={} reason=\"{}\"", model->id, error.what());
      again = std::min(again.value_or(now + patience), now + patience);
    }
  }
  return again;
}

std::vector<ModelHost::Other> ModelHost::Others() const {
  std::vector<Other> others;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, loading] : loading_) {
    if (loading->job_id.empty()) continue;
    others.push_back({.id = id,
                      .state = Other::State::kLoading,
                      .job_id = loading->job_id,
                      .about = loading->about,
                      .progress = loading->progress,
                      .pinned = loading->spec.pinned,
                      .idle_unload_s = loading->spec.idle_unload_s});
  }
  for (const auto& [id, leaving] : unloading_) {
    const engine::EngineStats stats = leaving.figures.stats();
    others.push_back({.id = id,
                      .state = Other::State::kUnloading,
                      .job_id = leaving.job_id,
                      .about = leaving.about,
                      .running = stats.requests_running,
                      .waiting = stats.requests_waiting,
                      .pinned = leaving.pinned,
                      .idle_unload_s = leaving.idle_unload_s});
  }
  const auto now = Clock::now();
  for (const Failed& failed : failed_) {
    const bool is_old = now - failed.at > kFailedAreListedFor;
    if (!is_old && !registry_.Contains(failed.model.id)) others.push_back(failed.model);
  }
  return others;
}

void ModelHost::StopLoading() {
  {
    const std::lock_guard lock(mutex_);
    stops_loading_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ModelHost::Stop() {
  StopLoading();
  std::vector<std::pair<std::vector<OnEnd>, Job>> ended;
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return;
    is_stopped_ = true;
    while (!unloading_.empty()) {
      Job job;
      auto callbacks = EndUnload(
          unloading_.begin()->first,
          FailedWith("the server stopped while requests still ran on the model", "interrupted"),
          job);
      ended.emplace_back(std::move(callbacks), std::move(job));
    }
  }
  for (const auto& [callbacks, job] : ended) CallAll(callbacks, job);
}

}  // namespace tandem::server
