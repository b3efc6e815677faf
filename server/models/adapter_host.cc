#include "server/models/adapter_host.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/thread_name.h"
#include "engine/base/thread_round.h"
#include "engine/model/adapter.h"

namespace tandem::server {
namespace {

Error ShuttingDown() {
  return Error(ErrorCode::kUnavailable, "the server is stopping").WithReason("shutting_down");
}

// Turns faults of the adapter's files into client errors: the request named them.
Error ForTheRequest(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kDataLoss:
    case ErrorCode::kIo:  // a directory where a file should be, or one that we may not read
      return Error(ErrorCode::kInvalidArgument, error.what()).WithReason("invalid_adapter");
    case ErrorCode::kUnsupported:
      return Error(ErrorCode::kInvalidArgument, error.what()).WithReason("unsupported_adapter");
    case ErrorCode::kNotFound:
      if (!error.param().empty()) return error;
      return Error(ErrorCode::kNotFound, error.what()).WithReason("path_not_found");
    default:
      return error;
  }
}

OwnEnd FailedWith(const Error& fault) {
  // All jobs that a shutdown cuts short end with the same code.
  if (fault.reason() == "shutting_down") {
    return {JobStatus::kFailed,
            JobError{"the server stopped before the adapter was loaded", "interrupted"},
            {}};
  }
  const std::string code = fault.reason().empty() ? "internal_error" : fault.reason();
  return {JobStatus::kFailed, JobError{fault.what(), code}, {}};
}

// Waits for memory: the adapter is served already.
std::string ResultOf(const ServedModel& model, std::chrono::steady_clock::duration elapsed) {
  std::string text;
  UntilMemorySuffices([&] {
    nlohmann::ordered_json result;
    result["adapter"] = model.id;
    result["base"] = model.base->id;
    result["rank"] = model.adapter_rank;
    result["memory_bytes"] = model.memory.claim().total();
    result["seconds"] = std::chrono::duration<double>(elapsed).count();
    text = result.dump();
  });
  return text;
}

}  // namespace

AdapterHost::AdapterHost(ModelRegistry& registry, MemoryLedger& ledger, JobSupervisor* jobs,
                         Maker maker, std::unique_ptr<AdapterBook> book)
    : registry_(registry),
      ledger_(ledger),
      jobs_(jobs),
      maker_(std::move(maker)),
      book_(std::move(book)) {
  thread_ = std::thread([this] { Run(); });
}

AdapterHost::~AdapterHost() { Stop(); }

std::shared_ptr<const ServedModel> AdapterHost::FindBase(const std::string& name) const {
  if (!name.empty()) {
    std::shared_ptr<const ServedModel> base = registry_.Look(name);
    if (!base->base) return base;
    throw Error(ErrorCode::kInvalidArgument, "'" + name + "' is an adapter of '" + base->base->id +
                                                 "': set base to '" + base->base->id + "'")
        .WithParam("base")
        .WithReason("invalid_value");
  }
  std::shared_ptr<const ServedModel> only;
  for (const auto& [id, model] : registry_.List()) {
    if (model->base || id != model->id) continue;
    if (only) {
      throw Error(ErrorCode::kInvalidArgument,
                  "base is required, since several models are served, such as '" + only->id +
                      "' and '" + id + "'")
          .WithParam("base")
          .WithReason("missing_required_parameter");
    }
    only = model;
  }
  return only ? only : registry_.Look("");  // throws: no model is served
}

void AdapterHost::Load(const AdapterLoadSpec& spec, const std::string& request_json, OnEnd on_end) {
  Task task{spec, spec.replace ? registry_.ClaimForAdapter(spec.name) : registry_.Claim(spec.name),
            FindBase(spec.base), "", std::move(on_end)};
  if (jobs_ != nullptr) {
    task.job_id = jobs_->BeginOwn(JobType::kAdapterLoad, request_json, nullptr).id;
  }
  {
    const std::lock_guard lock(mutex_);
    if (!is_stopped_) {
      queue_.push_back(std::move(task));
      wake_.notify_all();
      return;
    }
  }
  EndJob(task, FailedWith(ShuttingDown()));
  throw ShuttingDown();
}

std::shared_ptr<const ServedModel> AdapterHost::LoadOne(Task& task) {
  MemoryReservation memory = ledger_.Reserve(task.spec.name, maker_.plan(task.spec, *task.base));
  std::shared_ptr<const ServedModel> model =
      maker_.make(task.spec, std::move(task.base), std::move(memory));
  std::vector<NameClaim> names;
  names.push_back(std::move(task.name));
  const std::lock_guard lock(book_mutex_);
  registry_.Publish(model, std::move(names));
  if (!book_) return model;
  UndoOnFailure(
      [&] {
        book_->Put({model->id, model->base->id, model->path, model->adapter->fingerprint(),
                    model->created});
        from_book_.insert(model->id);
      },
      [&] { registry_.Remove(*model, nullptr, "the other replicas could not be told"); });
  return model;
}

// REQUIRES: book_mutex_ held.
void AdapterHost::LoadFromBook(const SharedAdapter& adapter,
                               std::shared_ptr<const ServedModel> base) {
  NameClaim name = registry_.ClaimForAdapter(adapter.name);
  const AdapterLoadSpec spec = {
      .name = adapter.name, .path = book_->PathOf(adapter), .base = adapter.base};
  MemoryReservation memory = ledger_.Reserve(spec.name, maker_.plan(spec, *base));
  std::shared_ptr<const ServedModel> model = maker_.make(spec, std::move(base), std::move(memory));
  if (model->adapter->fingerprint() != adapter.fingerprint) {
    throw Error(ErrorCode::kDataLoss, adapter.path +
                                          " has another content than the adapter that "
                                          "another replica has loaded from there");
  }
  std::vector<NameClaim> names;
  names.push_back(std::move(name));
  registry_.Publish(model, std::move(names));
  from_book_.insert(adapter.name);
}

void AdapterHost::FollowBook() {
  if (!book_) return;
  const std::lock_guard lock(book_mutex_);
  std::set<std::string> left = from_book_;
  std::map<std::string, SharedAdapter> shared;
  for (SharedAdapter& adapter : book_->List()) shared.emplace(adapter.name, adapter);
  {
    const std::lock_guard shared_lock(shared_mutex_);
    shared_ = shared;
  }
  for (const auto& [name, adapter] : shared) {
    left.erase(name);
    const std::shared_ptr<const ServedModel> served = registry_.LookServed(name);
    if (!served) continue;  // until its first use
    if (served->base && served->adapter->fingerprint() == adapter.fingerprint) {
      from_book_.insert(name);
      continue;
    }
    Replace(adapter, *served);
  }
  for (const std::string& name : left) {
    from_book_.erase(name);
    const std::shared_ptr<const ServedModel> served = registry_.LookServed(name);
    if (served && served->base) registry_.Remove(*served, nullptr, "it was unloaded");
  }
}

// Loads what another replica has put in the place of `served`. A base that is not served here has
// to be loaded first, which waits for our lock: the first use of the adapter does both.
void AdapterHost::Replace(const SharedAdapter& adapter, const ServedModel& served) {
  std::shared_ptr<const ServedModel> base = registry_.LookServed(adapter.base);
  if (!base && served.base) {
    registry_.Remove(served, nullptr, "another replica has replaced it");
    return;
  }
  const auto error = ErrorOf([&] {
    if (!base) throw Error(ErrorCode::kNotFound, "its base '" + adapter.base + "' is not served");
    LoadFromBook(adapter, std::move(base));
  });
  if (!error) return;
  spdlog::warn("adapter_not_followed adapter={} reason=\"{}\"", adapter.name, error->what());
}

std::vector<SharedAdapter> AdapterHost::Unloaded() const {
  std::vector<SharedAdapter> unloaded;
  {
    const std::lock_guard lock(shared_mutex_);
    for (const auto& [name, adapter] : shared_) unloaded.push_back(adapter);
  }
  std::erase_if(unloaded, [this](const SharedAdapter& adapter) {
    return registry_.Contains(adapter.name) || !registry_.Contains(adapter.base);
  });
  return unloaded;
}

std::optional<SharedAdapter> AdapterHost::FindShared(const std::string& name) const {
  const std::lock_guard lock(shared_mutex_);
  const auto found = shared_.find(name);
  return found == shared_.end() ? std::nullopt : std::optional(found->second);
}

// REQUIRES: book_mutex_ held.
void AdapterHost::RemoveFromBook(const std::string& name) {
  book_->Remove(name);
  from_book_.erase(name);
  const std::lock_guard lock(shared_mutex_);
  shared_.erase(name);
}

bool AdapterHost::LoadShared(const std::string& name) {
  std::optional<SharedAdapter> adapter = FindShared(name);
  // An entry that names itself or another entry as its base would wait for its own lock.
  if (!adapter || FindShared(adapter->base)) return false;
  // Before the lock: the base may have to be loaded too.
  std::shared_ptr<const ServedModel> base = registry_.Look(adapter->base);
  const std::lock_guard lock(book_mutex_);
  adapter = FindShared(name);
  if (!adapter) return false;
  if (!registry_.Contains(name)) LoadFromBook(*adapter, std::move(base));
  return true;
}

void AdapterHost::EndJob(Task& task, const OwnEnd& end) {
  if (jobs_ != nullptr) UntilMemorySuffices([&] { jobs_->EndOwn(task.job_id, end); });
  task.has_ended = true;
}

// Ends the job of a load whose own end lacked memory. The client gets the answer of an abandoned
// request.
void AdapterHost::EndWithoutMemory(Task& task) {
  task.name.Release();
  task.base.reset();
  task.on_end = nullptr;
  OwnEnd end;
  UntilMemorySuffices([&] {
    end = FailedWith(Error(ErrorCode::kUnavailable, "not enough memory to load the adapter")
                         .WithReason("out_of_memory"));
  });
  EndJob(task, end);
}

void AdapterHost::LoadAndEnd(Task& task, bool is_late) {
  const auto begin = std::chrono::steady_clock::now();
  std::shared_ptr<const ServedModel> model;
  OwnEnd end;
  std::optional<Error> error = Attempt([&] {
    if (is_late) throw ShuttingDown();
    if (jobs_ != nullptr) jobs_->StartOwn(task.job_id);
    model = LoadOne(task);
    end.result_json = ResultOf(*model, std::chrono::steady_clock::now() - begin);
  });
  if (error) {
    error = ForTheRequest(*error);
    spdlog::warn("adapter_not_loaded adapter={} reason=\"{}\"", task.spec.name, error->what());
    end = FailedWith(*error);
  }
  task.name.Release();  // before the client learns of a failure and retries
  task.base.reset();
  EndJob(task, std::move(end));
  task.on_end(std::move(model), error);
}

void AdapterHost::Run() {
  NameThisThread("tandem-adapters");
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return is_stopped_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Task task = std::move(queue_.front());
    queue_.pop_front();
    const bool is_late = is_stopped_;
    lock.unlock();
    RunRound("load of an adapter", [&] { LoadAndEnd(task, is_late); });
    if (!task.has_ended) RunRound("end of a load", [&] { EndWithoutMemory(task); });
    lock.lock();
  }
}

void AdapterHost::Unload(const std::string& name) {
  const auto not_found = [&](const std::string& why) {
    return Error(ErrorCode::kNotFound, why).WithParam("name").WithReason("adapter_not_found");
  };
  std::shared_ptr<const ServedModel> model = registry_.LookServed(name);
  if (!model && FindShared(name)) {
    const std::lock_guard lock(book_mutex_);
    return RemoveFromBook(name);
  }
  if (!model) throw not_found("no adapter named '" + name.substr(0, 120) + "' is loaded");
  if (!model->base) {
    throw not_found("'" + name.substr(0, 120) + "' is a model, not an adapter: unload it with " +
                    "POST /admin/models/unload");
  }
  const std::lock_guard lock(book_mutex_);
  if (book_) RemoveFromBook(name);
  if (!registry_.Remove(*model, nullptr, "it was unloaded")) {
    throw not_found("adapter '" + name.substr(0, 120) + "' is already unloaded");
  }
  spdlog::info("adapter_unloaded adapter={}", name);
}

void AdapterHost::Stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace tandem::server
