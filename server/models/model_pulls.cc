#include "server/models/model_pulls.h"

#include <filesystem>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "engine/base/thread_name.h"
#include "engine/base/thread_round.h"
#include "engine/hub/pull.h"

namespace tandem::server {
namespace {

constexpr size_t kMostWaitingPulls = 8;

engine::HubReference ReferenceOf(const std::string& name) {
  const auto reference = engine::ParseHubReference(name);
  if (reference) return *reference;
  throw Error(ErrorCode::kInvalidArgument,
              "'" + name.substr(0, 120) +
                  "' is not a model of the hub: expected ORG/NAME, or for a GGUF file "
                  "ORG/NAME:FILE.gguf or ORG/NAME:Q4_K_M")
      .WithParam("model");
}

}  // namespace

ModelPulls::ModelPulls() : thread_([this] { Run(); }) {}

ModelPulls::~ModelPulls() { Stop(); }

void ModelPulls::Start(const std::string& name, Watcher watcher) {
  ReferenceOf(name);
  auto pull = std::make_shared<const Pull>(Pull{name, std::move(watcher), {}});
  const std::lock_guard lock(mutex_);
  if (is_stopped_) {
    throw Error(ErrorCode::kUnavailable, "the server is stopping").WithReason("shutting_down");
  }
  if (waiting_.size() >= kMostWaitingPulls) {
    throw Error(ErrorCode::kUnavailable, "too many downloads are waiting; try again later");
  }
  waiting_.push_back(std::move(pull));
  wake_.notify_all();
}

void ModelPulls::Stop() {
  std::deque<std::shared_ptr<const Pull>> forgotten;  // destroyed outside the lock
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    running_.request_stop();
    forgotten.swap(waiting_);
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void ModelPulls::Run() {
  NameThisThread("tandem-pulls");
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return is_stopped_ || !waiting_.empty(); });
    if (is_stopped_) return;
    std::shared_ptr<const Pull> pull = std::move(waiting_.front());
    waiting_.pop_front();
    running_ = pull->stop;
    lock.unlock();
    RunRound("download of a model", [&] { PullOne(*pull); });
    pull.reset();
    lock.lock();
  }
}

void ModelPulls::PullOne(const Pull& pull) {
  std::stop_source stop = pull.stop;
  const auto report = [&](const engine::PullStatus& status) {
    if (!pull.watcher.on_progress({status.bytes_total, status.bytes_done})) stop.request_stop();
  };
  std::string path;
  const std::optional<Error> error = ErrorOf([&] {
    path = engine::PullModel(ReferenceOf(pull.name), engine::HubOptionsFromEnvironment(), report,
                             stop.get_token())
               .string();
  });
  spdlog::log(error ? spdlog::level::warn : spdlog::level::info, "model_pull_ended model={}{}",
              pull.name, error ? std::string(" reason=\"") + error->what() + "\"" : "");
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return;
  }
  pull.watcher.on_end(error, path);
}

}  // namespace tandem::server
