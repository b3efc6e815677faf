#include "server/metrics/engine_metrics.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "engine/base/unix_time.h"
#include "engine/kv/block_pool.h"

namespace tandem::server {
namespace {

std::string Joined(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

// See AddGauges for `engines`.
void AddAdapters(MetricFamilies& families, const Metrics::Snapshot& snapshot,
                 const std::string& name, const std::vector<Metrics::Model>& engines) {
  std::set<std::string> running, waiting;
  int64_t max_adapters = 0;
  for (const Metrics::Model& one : engines) {
    const engine::EngineStats stats = one.figures.stats();
    max_adapters = stats.max_adapters;
    for (const std::string& id : stats.running_adapters) running.insert(ShownName(snapshot, id));
    for (const std::string& id : stats.waiting_adapters) waiting.insert(ShownName(snapshot, id));
  }
  // As in vLLM, the value is the time at which the labels were true.
  const double now = UnixNowExact();
  families.Gauge("lora_requests_info", "Adapters of running and waiting requests.",
                 {{"max_lora", std::to_string(max_adapters)},
                  {"model_name", name},
                  {"running_lora_adapters", Joined(running)},
                  {"waiting_lora_adapters", Joined(waiting)}},
                 std::floor(now));
}

}  // namespace

void AddCounters(MetricFamilies& families, const std::string& name, const EngineTotals& totals) {
  const MetricFamilies::Labels labels{{"model_name", name}};
  const auto counter = [&](const char* metric, const char* help, int64_t value) {
    families.Counter(metric, help, labels, static_cast<double>(value));
  };
  counter("prompt_tokens_total", "Prompt tokens processed.", totals.stats.prompt_tokens_total);
  counter("generation_tokens_total", "Tokens generated.", totals.stats.generation_tokens_total);
  counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
          totals.stats.prefix_query_tokens_total);
  counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
          totals.stats.prefix_hit_tokens_total);
  counter("prefix_cache_disk_blocks_read_total", "Blocks of prefixes that were read from disk.",
          totals.stats.disk_blocks_read_total);
  counter("prefix_cache_disk_blocks_written_total", "Blocks of prefixes that were written to disk.",
          totals.stats.disk_blocks_written_total);
  counter("num_preemptions_total", "Sequences that lost their KV blocks and were recomputed.",
          totals.stats.preemptions_total);
  counter("spec_decode_num_draft_tokens_total", "Guessed tokens that were computed.",
          totals.stats.draft_tokens_total);
  counter("spec_decode_num_accepted_tokens_total", "Guessed tokens that were right.",
          totals.stats.accepted_draft_tokens_total);
  counter("spec_decode_draft_passes_total", "Forward passes of the draft model.",
          totals.stats.draft_passes_total);
  families.Counter("spec_decode_draft_seconds_total", "Time in the draft model.", labels,
                   totals.stats.draft_seconds_total);

  const engine::EngineHistograms& h = totals.histograms;
  const auto histogram = [&](const char* metric, const char* help, const Histogram& values) {
    families.Histo(metric, help, labels, values);
  };
  histogram("time_to_first_token_seconds", "From arrival to the first token.",
            h.time_to_first_token_s);
  histogram("inter_token_latency_seconds", "Between two tokens of one choice.", h.inter_token_s);
  histogram("e2e_request_latency_seconds", "From arrival to the last token.", h.e2e_s);
  histogram("request_queue_time_seconds", "From arrival to a place in the batch.", h.queue_s);
  histogram("request_prefill_time_seconds", "From a place in the batch to the first token.",
            h.prefill_s);
  histogram("request_decode_time_seconds", "From the first token to the last.", h.decode_s);
  histogram("request_inference_time_seconds", "From a place in the batch to the last token.",
            h.inference_s);
  histogram("request_prompt_tokens", "Prompt tokens per request.", h.prompt_tokens);
  histogram("request_generation_tokens", "Tokens generated per request.", h.generation_tokens);
  histogram("request_params_n", "Choices requested per request.", h.params_n);
  histogram("request_params_max_tokens", "Token limit per request.", h.params_max_tokens);
  histogram("iteration_tokens_total", "Tokens computed per engine step.", h.step_tokens);
}

void AddGauges(MetricFamilies& families, const Metrics::Snapshot& snapshot, const std::string& name,
               const std::vector<Metrics::Model>& engines) {
  const Metrics::Model& model = engines.back();
  const MetricFamilies::Labels labels{{"model_name", name}};
  engine::EngineStats stats;
  for (const Metrics::Model& one : engines) {
    const engine::EngineStats more = one.figures.stats();
    stats.requests_running += more.requests_running;
    stats.requests_waiting += more.requests_waiting;
    stats.batch_running += more.batch_running;
    stats.batch_waiting += more.batch_waiting;
    stats.kv_blocks_used += more.kv_blocks_used;
    stats.kv_blocks_total += more.kv_blocks_total;
  }
  families.Gauge("num_requests_running", "Sequences in the batch.", labels,
                 static_cast<double>(stats.requests_running));
  families.Gauge("num_requests_waiting", "Sequences waiting for a place in the batch.", labels,
                 static_cast<double>(stats.requests_waiting));
  families.Gauge("num_batch_requests_running", "Sequences of batch requests in the batch.", labels,
                 static_cast<double>(stats.batch_running));
  families.Gauge("num_batch_requests_waiting",
                 "Sequences of batch requests waiting for a place in the batch.", labels,
                 static_cast<double>(stats.batch_waiting));
  families.Gauge("kv_cache_usage_perc", "Fraction of the KV cache in use, 0 to 1.", labels,
                 stats.kv_blocks_total == 0 ? 0.0
                                            : static_cast<double>(stats.kv_blocks_used) /
                                                  static_cast<double>(stats.kv_blocks_total));
  AddAdapters(families, snapshot, name, engines);
  // Dashboards read the number of blocks under this name, also for CPU memory.
  families.Gauge("cache_config_info", "Layout of the KV cache.",
                 {{"block_size", std::to_string(engine::kTokensPerBlock)},
                  {"cache_dtype", model.kv_dtype},
                  {"enable_prefix_caching", model.prefix_cache ? "True" : "False"},
                  {"model_name", name},
                  {"num_gpu_blocks", std::to_string(stats.kv_blocks_total)}},
                 1);
}

}  // namespace tandem::server
