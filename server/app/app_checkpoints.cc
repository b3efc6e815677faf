// Checkpoints of fine-tuning jobs are loaded when a request names one. There are many and few are
// used, so none is loaded earlier and none needs a record.

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "server/app/app.h"
#include "server/fine_tuning/fine_tuning_checkpoints.h"
#include "server/fine_tuning/fine_tuning_object.h"
#include "server/fine_tuning/fine_tuning_provenance.h"

namespace tandem::server {
namespace {

// Idle time after which a full-model checkpoint is unloaded.
constexpr int64_t kIdleSeconds = 600;

Error IsLoading(const std::string& name) {
  return Error(ErrorCode::kUnavailable, "'" + name + "' is being loaded; try again later")
      .WithReason("model_loading");
}

}  // namespace

// Loads an adapter at once, on the calling thread. A whole model takes too long: the host loads it
// as for /admin/models/load, and requests get 503 model_loading meanwhile.
void App::LoadCheckpoint(const std::string& name, const Viewer& viewer) {
  if (AdapterHost* adapters = context_.adapter_host; adapters && adapters->LoadShared(name)) return;
  JobSupervisor* jobs = context_.jobs;
  ModelHost* host = context_.model_host;
  if (jobs == nullptr || host == nullptr) return;
  if (LoadJobModel(name) || !IsCheckpointName(name)) return;
  const auto found = FindFineTuningCheckpoint(*jobs, name);
  if (!found || !MaySee(viewer, found->job.owner)) return;
  const std::string base_id = FineTunedBaseOf(found->job);
  RecordFineTuning(found->job, found->checkpoint.dir, models_, *files_);
  if (!found->checkpoint.is_adapter) {
    if (models_.IsClaimed(name)) throw IsLoading(name);
    ModelLoadSpec spec;
    spec.source = found->checkpoint.dir.string();
    spec.id = name;
    spec.idle_unload_s = kIdleSeconds;
    spec.parent = base_id;
    spec.owner = found->job.owner;
    // kAlreadyExists: another request was first.
    ErrorOf({ErrorCode::kAlreadyExists}, [&] {
      host->Load(spec, nlohmann::json{{"id", name}}.dump(), nullptr);
    });
    if (models_.Contains(name)) return;
    throw IsLoading(name);
  }
  // Before the lock: the base may be a checkpoint too, and Look would load it.
  std::shared_ptr<const ServedModel> base = models_.Look(base_id);
  const std::lock_guard lock(checkpoint_mutex_);
  if (models_.Contains(name)) return;
  ThrowIfStopping();
  PublishAdapterAs(name, found->checkpoint.dir.string(), std::move(base), found->job.owner);
  spdlog::info("checkpoint_published job={} model={}", found->job.id, name);
}

}  // namespace tandem::server
