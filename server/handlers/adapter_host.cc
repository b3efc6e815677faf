#include "server/handlers/adapter_host.h"

#include <utility>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/thread_name.h"

namespace tandem::server {
namespace {

Error ShuttingDown() {
  return Error(ErrorCode::kUnavailable, "the server is stopping").WithReason("shutting_down");
}

}  // namespace

AdapterHost::AdapterHost(ModelRegistry& registry, MemoryLedger& ledger, Maker maker)
    : registry_(registry), ledger_(ledger), maker_(std::move(maker)) {
  thread_ = std::thread([this] { Run(); });
}

AdapterHost::~AdapterHost() { Stop(); }

std::shared_ptr<const ServedModel> AdapterHost::FindBase(const std::string& name) const {
  if (!name.empty()) {
    std::shared_ptr<const ServedModel> base = registry_.Look(name);
    if (!base->base) return base;
    throw Error(ErrorCode::kInvalidArgument,
                "'" + name + "' is an adapter of '" + base->base->id + "': name that as the base")
        .WithParam("base")
        .WithReason("invalid_value");
  }
  std::shared_ptr<const ServedModel> only;
  for (const auto& [id, model] : registry_.List()) {
    if (model->base || id != model->id) continue;
    if (only) {
      throw Error(ErrorCode::kInvalidArgument, "base is required: several models are served, '" +
                                                   only->id + "' and '" + id + "' among them")
          .WithParam("base")
          .WithReason("missing_required_parameter");
    }
    only = model;
  }
  return only ? only : registry_.Look("");  // which says that there is none
}

void AdapterHost::Load(const AdapterLoadSpec& spec, OnEnd on_end) {
  Task task{spec, spec.replace ? registry_.ClaimForAdapter(spec.name) : registry_.Claim(spec.name),
            FindBase(spec.base), std::move(on_end)};
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) throw ShuttingDown();
    queue_.push_back(std::move(task));
  }
  wake_.notify_all();
}

std::shared_ptr<const ServedModel> AdapterHost::LoadOne(Task& task) {
  MemoryReservation memory = ledger_.Reserve(task.spec.name, maker_.plan(task.spec, *task.base));
  std::shared_ptr<const ServedModel> model =
      maker_.make(task.spec, std::move(task.base), std::move(memory));
  std::vector<NameClaim> names;
  names.push_back(std::move(task.name));
  registry_.Publish(model, std::move(names));
  return model;
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
    std::shared_ptr<const ServedModel> model;
    std::exception_ptr fault;
    try {
      if (is_late) throw ShuttingDown();
      model = LoadOne(task);
    } catch (const std::bad_alloc&) {
      fault = std::make_exception_ptr(
          Error(ErrorCode::kUnavailable, "not enough memory to load the adapter")
              .WithReason("out_of_memory"));
    } catch (const std::exception& error) {
      spdlog::warn("adapter_not_loaded adapter={} reason=\"{}\"", task.spec.name, error.what());
      fault = std::current_exception();
    }
    task.name.Release();  // before anybody is told, who may try again
    task.base.reset();
    task.on_end(std::move(model), fault);
    lock.lock();
  }
}

void AdapterHost::Unload(const std::string& name) {
  const auto not_found = [&](const std::string& why) {
    return Error(ErrorCode::kNotFound, why).WithParam("name").WithReason("adapter_not_found");
  };
  std::shared_ptr<const ServedModel> model;
  if (registry_.Contains(name)) model = registry_.Look(name);
  if (!model) throw not_found("no adapter named '" + name.substr(0, 120) + "' is loaded");
  if (!model->base) {
    throw not_found("'" + name.substr(0, 120) + "' is a model, not an adapter: unload it with " +
                    "POST /admin/models/unload");
  }
  if (!registry_.Remove(*model, nullptr, "it was unloaded")) {
    throw not_found("adapter '" + name.substr(0, 120) + "' has left already");
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
