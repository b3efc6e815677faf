// How checkpoints of fine-tuning jobs come to answer requests: when one is asked for by its name.
// There are many of them and few are used, so none is loaded before, and nothing has to be recorded
// when one is made.

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "server/app/app.h"
#include "server/fine_tuning/fine_tuning_checkpoints.h"
#include "server/fine_tuning/fine_tuning_object.h"
#include "server/fine_tuning/fine_tuning_provenance.h"

namespace tandem::server {
namespace {

// A whole model that nobody has asked for so long leaves memory.
constexpr int64_t kIdleSeconds = 600;

Error IsLoading(const std::string& name) {
  return Error(ErrorCode::kUnavailable, "'" + name + "' is being loaded; try again in a moment")
      .WithReason("model_loading");
}

}  // namespace

// An adapter is loaded at once, on the thread that asks. A whole model takes too long for that: the
// host loads it as /admin/models/load would, and who asks meanwhile is told so.
void App::LoadCheckpoint(const std::string& name) {
  JobSupervisor* jobs = context_.jobs;
  ModelHost* host = context_.model_host;
  if (jobs == nullptr || host == nullptr || !IsCheckpointName(name)) return;
  const auto found = FindFineTuningCheckpoint(*jobs, name);
  if (!found) return;
  const std::string base_id = FineTunedBaseOf(found->job);
  RecordFineTuning(found->job, found->checkpoint.dir, models_, *files_);
  if (!found->checkpoint.is_adapter) {
    if (models_.IsClaimed(name)) throw IsLoading(name);
    ModelLoadSpec spec;
    spec.source = found->checkpoint.dir.string();
    spec.id = name;
    spec.idle_unload_s = kIdleSeconds;
    spec.parent = base_id;
    try {
      host->Load(spec, nlohmann::json{{"id", name}}.dump(), nullptr);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kAlreadyExists) throw;  // somebody else was first
    }
    if (models_.Contains(name)) return;
    throw IsLoading(name);
  }
  // Before the lock: the base may be a checkpoint itself.
  std::shared_ptr<const ServedModel> base = models_.Look(base_id);
  const std::lock_guard lock(checkpoint_mutex_);
  if (models_.Contains(name)) return;
  ThrowIfStopping();
  PublishAdapterAs(name, found->checkpoint.dir.string(), std::move(base));
  spdlog::info("checkpoint_published job={} model={}", found->job.id, name);
}

}  // namespace tandem::server
