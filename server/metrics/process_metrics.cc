#include "server/metrics/process_metrics.h"

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <string>

namespace tandem::server {
namespace {

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0;
  int64_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

}  // namespace

// Sums by name and kind: during a replacement, both models of one name count.
void AddMemory(MetricFamilies& families, const Metrics::Snapshot& snapshot) {
  std::map<std::string, MemoryClaim> by_model;
  int64_t used = 0;
  for (const auto& [name, claim] : snapshot.memory) {
    MemoryClaim& sum = by_model[ShownName(snapshot, name)];
    sum.weights += claim.weights;
    sum.kv += claim.kv;
    sum.scratch += claim.scratch;
    used += claim.total();
  }
  for (const auto& [name, claim] : by_model) {
    const auto memory = [&, model_name = name](const char* kind, int64_t bytes) {
      families.Gauge("model_memory_bytes", "Memory that a model has claimed from the budget.",
                     {{"kind", kind}, {"model_name", model_name}}, static_cast<double>(bytes));
    };
    memory("weights", claim.weights);
    memory("kv", claim.kv);
    memory("scratch", claim.scratch);
  }
  families.Gauge("memory_budget_bytes", "Memory budget of all models together (--memory).", {},
                 static_cast<double>(snapshot.memory_budget_bytes));
  families.Gauge("memory_used_bytes", "Memory that all models have claimed from the budget.", {},
                 static_cast<double>(used));
}

// The two training types have a series for every status, at zero too: Prometheus sees an increase
// only in an existing series.
void AddJobs(MetricFamilies& families, const Metrics::Snapshot& snapshot) {
  auto jobs = snapshot.jobs;
  for (const char* type : {"train", "fine_tune"}) {
    for (const char* status : {"queued", "running", "paused", "succeeded", "failed", "cancelled"}) {
      jobs.try_emplace({type, status}, 0);
    }
  }
  for (const auto& [key, count] : jobs) {
    families.Gauge("jobs", "Jobs in the data directory, including ended ones.",
                   {{"status", key.second}, {"type", key.first}}, static_cast<double>(count));
  }
  families.Gauge("finetune_loss", "Training loss of the last reported step; 0: none yet.", {},
                 snapshot.finetune_loss.value_or(0));
  families.Gauge("finetune_tokens_per_second", "Speed of the running training job; 0: no job runs.",
                 {}, snapshot.finetune_tokens_per_second.value_or(0));
  families.Counter("finetune_steps_total", "Steps that training jobs have reported.", {},
                   static_cast<double>(snapshot.finetune_steps));
}

void AddKeys(MetricFamilies& families, const Metrics::Snapshot& snapshot) {
  const auto counter = [&](const char* metric, const char* help, int64_t Metrics::KeyUse::*value) {
    for (const Metrics::KeyUse& key : snapshot.keys) {
      families.Counter(metric, help, {{"key_id", key.id}, {"key_name", key.name}},
                       static_cast<double>(key.*value));
    }
  };
  counter("key_requests_total", "Requests of an API key.", &Metrics::KeyUse::requests);
  counter("key_prompt_tokens_total", "Prompt tokens of an API key's finished requests.",
          &Metrics::KeyUse::prompt_tokens);
  counter("key_generation_tokens_total", "Tokens generated for an API key's finished requests.",
          &Metrics::KeyUse::generation_tokens);
}

void AddProcess(MetricFamilies& families, const Metrics::Snapshot& snapshot) {
  families.Gauge("ready", "1 if GET /ready answers 200.", {}, snapshot.is_ready ? 1 : 0);
  families.Gauge("healthy", "1 if GET /health answers 200.", {}, snapshot.is_healthy ? 1 : 0);
  families.Gauge("http_connections", "Open connections.", {},
                 static_cast<double>(snapshot.http_connections));
  if (snapshot.data_disk) {
    families.Gauge("data_disk_free_bytes", "Free bytes on the disk of the data directory.", {},
                   static_cast<double>(snapshot.data_disk->available));
    families.Gauge("data_disk_size_bytes", "Size of the disk of the data directory.", {},
                   static_cast<double>(snapshot.data_disk->capacity));
  }
  families.PlainGauge("process_resident_memory_bytes", "Resident memory of the process.",
                      static_cast<double>(ResidentBytes()));
}

}  // namespace tandem::server
