// The pipelines of the app: the server itself runs their load jobs after all other jobs have ended.

#include <chrono>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "server/app/app.h"
#include "server/jobs/job_files.h"
#include "server/jobs/running_job.h"

namespace tandem::server {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::milliseconds kLookInterval{
    100};  // between checks whether the server is stopping

ModelLoadSpec LoadSpecOf(const Json& load) {
  ModelLoadSpec spec;
  spec.source = load.at("model").get<std::string>();
  spec.id = load.at("id").get<std::string>();
  if (const std::string dtype = load.value("dtype", ""); !dtype.empty()) spec.dtype = dtype;
  if (const int64_t n = load.value("max_model_len", int64_t{0}); n > 0) spec.max_model_len = n;
  return spec;
}

}  // namespace

// Starts a load or an unload and waits for its end.
void App::WaitForHost(const std::function<void(ModelHost::OnEnd)>& begin, const std::string& what) {
  const auto ended = std::make_shared<std::promise<Job>>();
  std::future<Job> job = ended->get_future();
  const auto error = ErrorOf([&] { begin([ended](const Job& end) { ended->set_value(end); }); });
  if (error) {
    ThrowIfStopping();  // the next start repeats the job's end
    throw Error(*error);
  }
  while (job.wait_for(kLookInterval) != std::future_status::ready) ThrowIfStopping();
  const Job end = job.get();
  ThrowIfStopping();
  if (end.status == JobStatus::kSucceeded) return;
  throw Error(ErrorCode::kFailedPrecondition,
              what + (end.error ? ": " + end.error->message : " was cancelled"));
}

// A start after an interruption repeats this from the beginning, without any of the models loaded.
void App::LoadPipelineModels(const Job& job) {
  const Json result = Json::parse(job.result_json.value_or("{}"), nullptr, false);
  for (const Json& load : result.value("loads", Json::array())) {
    const ModelLoadSpec spec = LoadSpecOf(load);
    const std::string request = load.dump();
    if (load.value("replace", false) && models_.Contains(spec.id)) {
      WaitForHost(
          [&](ModelHost::OnEnd on_end) {
            host_->Unload(spec.id, false, request, std::move(on_end));
          },
          "unloading " + spec.id);
    }
    WaitForHost([&](ModelHost::OnEnd on_end) { host_->Load(spec, request, std::move(on_end)); },
                "loading " + spec.id);
    AppendLogLine(LogFile(job.dir), "tandem: the server has loaded " + spec.id);
    const std::string alias = load.value("alias", "");
    if (!alias.empty()) {
      // During a start, aliases become available shortly after jobs.
      while (context_.aliases.load() == nullptr) {
        ThrowIfStopping();
        std::this_thread::sleep_for(kLookInterval);
      }
      aliases_->Set(alias, spec.id);
    }
    spdlog::info("pipeline_model_loaded job={} model={} alias={}", job.id, spec.id, alias);
  }
}

}  // namespace tandem::server
