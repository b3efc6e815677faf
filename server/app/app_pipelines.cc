// The part of the app that is about pipelines: their jobs of kind load are done here, by the server
// itself, when all other jobs have ended.

#include <chrono>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/base/log.h"
#include "server/app/app.h"
#include "server/jobs/job_files.h"
#include "server/jobs/running_job.h"

namespace tandem::server {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::milliseconds kLookInterval{100};  // whether the server is stopping

ModelLoadSpec LoadSpecOf(const Json& load) {
  ModelLoadSpec spec;
  spec.source = load.at("model").get<std::string>();
  spec.id = load.at("id").get<std::string>();
  if (const std::string dtype = load.value("dtype", ""); !dtype.empty()) spec.dtype = dtype;
  if (const int64_t n = load.value("max_model_len", int64_t{0}); n > 0) spec.max_model_len = n;
  return spec;
}

}  // namespace

// Begins a load or an unload and waits for its end.
void App::WaitForHost(const std::function<void(ModelHost::OnEnd)>& begin, const std::string& what) {
  const auto ended = std::make_shared<std::promise<Job>>();
  std::future<Job> job = ended->get_future();
  try {
    begin([ended](const Job& end) { ended->set_value(end); });
  } catch (const Error&) {
    ThrowIfStopping();  // the next server does it
    throw;
  }
  while (job.wait_for(kLookInterval) != std::future_status::ready) ThrowIfStopping();
  const Job end = job.get();
  ThrowIfStopping();
  if (end.status == JobStatus::kSucceeded) return;
  throw Error(ErrorCode::kFailedPrecondition,
              what + (end.error ? ": " + end.error->message : " was cancelled"));
}

// May be done again by the next server, which has none of the models then.
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
      // A server that is starting has its aliases a moment later than its jobs.
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
