#include "server/metrics/metrics.h"

#include "server/files/file_store.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"
#include "server/jobs/job_supervisor.h"

namespace tandem::server {
namespace {

// GET /metrics
void GetMetrics(const HandlerContext& context, Request request, ResponseWriter writer) {
  Metrics::Snapshot snapshot;
  snapshot.now = context.now();
  const bool sees_all = !context.may_see_models || context.may_see_models(request);
  if (!sees_all) snapshot.visible.emplace();
  for (const auto& [name, model] : context.models.List()) {
    snapshot.served.insert(model->id);
    // Only the operator's models: the names of fine-tunes and adapters belong to their users.
    if (!sees_all && !model->base && !model->is_tuned()) snapshot.visible->insert(model->id);
  }
  snapshot.memory = context.memory->Entries();
  snapshot.memory_budget_bytes = context.memory->budget_bytes();
  snapshot.http_connections = context.open_connections();
  if (JobSupervisor* jobs = context.jobs) {
    const TrainingFigures figures = jobs->training_figures();
    snapshot.finetune_loss = figures.loss;
    snapshot.finetune_tokens_per_second = figures.tokens_per_second;
    snapshot.finetune_steps = figures.steps;
    snapshot.jobs = jobs->counts();
  }
  snapshot.is_ready = WhyNotReady(context) == nullptr;
  snapshot.is_healthy = !IsStuck(context);
  if (FileStore* files = context.files) snapshot.data_disk = files->DiskSpace();
  Response response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = context.metrics->Text(snapshot);
  writer.Send(std::move(response));
}

}  // namespace

std::span<const Endpoint> MetricsEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"GET", "/metrics", GetMetrics, Access::kMetricsKey, RunsOn::kIoThread},
  };
  return kEndpoints;
}

}  // namespace tandem::server
