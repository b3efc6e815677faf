#include "server/metrics/metrics.h"

#include <unordered_map>
#include <utility>
#include <vector>

#include "server/admission/admission.h"
#include "server/files/file_store.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"
#include "server/jobs/job_supervisor.h"
#include "server/keys/managed_keys.h"

namespace tandem::server {
namespace {

// More keys than this share the series kOtherKeys.
constexpr size_t kMaxKeySeries = 1000;
constexpr const char* kOtherKeys = "other";

void Add(Metrics::KeyUse& sum, const UsageCounts& counts) {
  sum.requests += counts.requests;
  sum.prompt_tokens += counts.prompt_tokens;
  sum.generation_tokens += counts.generation_tokens;
}

// A series for each managed key that is not revoked, and one each for the admin key, the keys of
// flags and files, requests without a key, and all others. A reader who may not see keys gets one
// sum.
std::vector<Metrics::KeyUse> KeyUses(const HandlerContext& context, bool sees_keys) {
  std::unordered_map<uint64_t, UsageCounts> counts = context.key_usage->All();
  std::vector<Metrics::KeyUse> uses;
  Metrics::KeyUse other{kOtherKeys, kOtherKeys};
  if (!sees_keys) {
    for (const auto& [client, count] : counts) Add(other, count);
    uses.push_back(std::move(other));
    return uses;
  }
  const std::vector<KeyRecord> records =
      context.keys == nullptr ? std::vector<KeyRecord>() : context.keys->List();
  for (const KeyRecord& record : records) {
    const UsageCounts count = context.key_usage->Of(record.digest[0]);
    counts.erase(record.digest[0]);
    if (record.revoked_at || uses.size() == kMaxKeySeries) {
      Add(other, count);
      continue;
    }
    Add(uses.emplace_back(Metrics::KeyUse{record.id, record.name}), count);
  }
  Metrics::KeyUse admin{"admin", "admin"};
  Metrics::KeyUse none{"none", "none"};
  Metrics::KeyUse configured{"configured", "configured"};
  for (const auto& [client, count] : counts) {
    Add(client == 0 ? none : client == kAdminClient ? admin : configured, count);
  }
  for (Metrics::KeyUse* rest : {&admin, &configured, &none, &other}) {
    uses.push_back(std::move(*rest));
  }
  return uses;
}

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
  snapshot.keys = KeyUses(context, context.may_see_keys && context.may_see_keys(request));
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
