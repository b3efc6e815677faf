#include "server/metrics/metrics.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include "engine/base/unix_time.h"
#include "engine/kv/block_pool.h"
#include "server/metrics/exposition.h"

namespace tandem::server {
namespace {

using Labels = decltype(Metric::labels);

constexpr std::array<std::string_view, 5> kReasons{"stop", "length", "tool_calls", "abort",
                                                   "error"};

// Clients choose the method, so all unknown methods share one label.
std::string_view KnownMethod(std::string_view method) {
  for (const std::string_view known :
       {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}) {
    if (method == known) return known;
  }
  return "other";
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0;
  int64_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

// Metric families under construction, in the order of their first use.
class Families {
 public:
  explicit Families(std::string prefix) : prefix_(std::move(prefix) + ":") {}

  void Gauge(const std::string& name, const char* help, Labels labels, double value) {
    Add(prefix_ + name, help, MetricType::kGauge, {std::move(labels), value, {}});
  }
  void PlainGauge(const std::string& name, const char* help, double value) {
    Add(name, help, MetricType::kGauge, {{}, value, {}});
  }
  void Counter(const std::string& name, const char* help, Labels labels, double value) {
    Add(prefix_ + name, help, MetricType::kCounter, {std::move(labels), value, {}});
  }
  void Histo(const std::string& name, const char* help, Labels labels, const Histogram& histogram) {
    Metric metric{std::move(labels), histogram.sum(), {}};
    const auto counts = histogram.counts();
    uint64_t cumulative = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      cumulative += counts[i];
      const double bound = i < histogram.bounds().size() ? histogram.bounds()[i]
                                                         : std::numeric_limits<double>::infinity();
      metric.buckets.push_back({cumulative, bound});
    }
    Add(prefix_ + name, help, MetricType::kHistogram, std::move(metric));
  }

  std::string Text() const { return ExpositionText(families_); }

 private:
  void Add(const std::string& name, const char* help, MetricType type, Metric metric) {
    const auto known =
        std::find_if(families_.begin(), families_.end(),
                     [&](const MetricFamily& family) { return family.name == name; });
    MetricFamily& family = known != families_.end()
                               ? *known
                               : families_.emplace_back(MetricFamily{name, help, type, {}});
    family.metrics.push_back(std::move(metric));
  }

  const std::string prefix_;
  std::vector<MetricFamily> families_;
};

// Sums over a model's engines, past and present.
struct Totals {
  engine::EngineStats stats;
  engine::EngineHistograms histograms;

  void Add(const engine::EngineFigures& figures) { Add({figures.stats(), figures.histograms()}); }
  void Add(const Totals& other) {
    const engine::EngineStats& more = other.stats;
    stats.prompt_tokens_total += more.prompt_tokens_total;
    stats.generation_tokens_total += more.generation_tokens_total;
    stats.prefix_query_tokens_total += more.prefix_query_tokens_total;
    stats.prefix_hit_tokens_total += more.prefix_hit_tokens_total;
    stats.preemptions_total += more.preemptions_total;
    stats.disk_blocks_read_total += more.disk_blocks_read_total;
    stats.disk_blocks_written_total += more.disk_blocks_written_total;
    stats.draft_tokens_total += more.draft_tokens_total;
    stats.accepted_draft_tokens_total += more.accepted_draft_tokens_total;
    stats.draft_passes_total += more.draft_passes_total;
    stats.draft_seconds_total += more.draft_seconds_total;
    histograms.Add(other.histograms);
  }
};

void AddCounters(Families& families, const std::string& name, const Totals& totals) {
  const Labels labels{{"model_name", name}};
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

std::string Joined(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

// The model's name as the snapshot's reader sees it.
std::string ShownName(const Metrics::Snapshot& snapshot, const std::string& name) {
  const bool is_visible = !snapshot.visible || snapshot.visible->contains(name);
  return is_visible ? name : std::string(Metrics::kOtherModels);
}

// `engines` are those of one shown name, the newest last.
void AddAdapters(Families& families, const Metrics::Snapshot& snapshot, const std::string& name,
                 const std::vector<Metrics::Model>& engines) {
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

// See AddAdapters for `engines`.
void AddGauges(Families& families, const Metrics::Snapshot& snapshot, const std::string& name,
               const std::vector<Metrics::Model>& engines) {
  const Metrics::Model& model = engines.back();
  const Labels labels{{"model_name", name}};
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

// Sums by name and kind: during a replacement, both models of one name count.
void AddMemory(Families& families, const Metrics::Snapshot& snapshot) {
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
void AddJobs(Families& families, const Metrics::Snapshot& snapshot) {
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

void AddKeys(Families& families, const Metrics::Snapshot& snapshot) {
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

void AddProcess(Families& families, const Metrics::Snapshot& snapshot) {
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

}  // namespace

class Metrics::RequestEnds {
 public:
  std::array<std::atomic<int64_t>, kReasons.size()> counts{};
};

using EndCounts = std::array<int64_t, kReasons.size()>;

struct Metrics::State {
  // Engines of one model name. The counters of ended engines are added to `ended`.
  struct History {
    Totals ended;
    std::vector<Model> engines;

    void FoldEnded() {
      std::erase_if(engines, [&](const Model& model) {
        if (!model.figures.has_ended()) return false;
        ended.Add(model.figures);
        return true;
      });
    }
  };

  explicit State(std::string the_prefix) : prefix(std::move(the_prefix)) {}

  const std::string prefix;
  std::mutex mutex;  // guards the rest
  std::map<std::tuple<std::string_view, std::string, int>, int64_t> http;
  std::map<std::string, std::shared_ptr<RequestEnds>> ends;
  std::map<std::string, History> histories;
  std::map<std::string, std::chrono::steady_clock::time_point> departed;  // time of the first
                                                                          // absence
  // Names that readers with a restricted view have seen.
  std::set<std::string> shown;
  // Counters of forgotten models that those readers saw as kOtherModels.
  std::optional<Totals> other_totals;
  std::optional<EndCounts> other_ends;

  // Figures that a scrape shows beside the gauges, by shown name.
  struct Collected {
    std::map<std::string, Totals> totals;
    std::map<std::string, EndCounts> ends;
    decltype(State::http) http;
  };

  // The next four REQUIRE the mutex held. Collect adds the gauges of the engines itself: a copy of
  // their figures outside the lock would hide that an engine has ended.
  Collected Collect(Snapshot* snapshot, Families& families);
  void ForgetDeparted(const Snapshot& snapshot);
  void Forget(const std::string& name);
  void KeepShown(Snapshot* snapshot);
};

Metrics::State::Collected Metrics::State::Collect(Snapshot* snapshot, Families& families) {
  ForgetDeparted(*snapshot);
  KeepShown(snapshot);
  Collected all;
  std::map<std::string, std::vector<Model>> engines;
  const std::string other(kOtherModels);
  if (snapshot->visible && other_totals) all.totals[other] = *other_totals;
  for (const auto& [name, history] : histories) {
    const std::string shown_name = ShownName(*snapshot, name);
    all.totals[shown_name].Add(history.ended);
    for (const Model& model : history.engines) {
      all.totals[shown_name].Add(model.figures);
      engines[shown_name].push_back(model);
    }
  }
  for (const auto& [name, models] : engines) AddGauges(families, *snapshot, name, models);
  if (snapshot->visible && other_ends) all.ends[other] = *other_ends;
  for (const auto& [name, counters] : ends) {
    auto& sums = all.ends[ShownName(*snapshot, name)];
    for (size_t i = 0; i < kReasons.size(); ++i) sums[i] += counters->counts[i];
  }
  all.http = http;
  return all;
}

// A model that neither answers nor has an engine keeps its series for kKeepDeparted. Otherwise
// unloaded models would leave series for the lifetime of the server. A model that returns later
// starts at zero, which Prometheus treats as a restart.
void Metrics::State::ForgetDeparted(const Snapshot& snapshot) {
  std::set<std::string> gone;
  for (auto& [name, history] : histories) {
    history.FoldEnded();
    if (history.engines.empty()) gone.insert(name);
  }
  for (const auto& [name, counts] : ends) {
    if (!histories.contains(name)) gone.insert(name);
  }
  for (const std::string& name : snapshot.served) gone.erase(name);
  std::erase_if(departed, [&](const auto& entry) { return !gone.contains(entry.first); });
  for (const std::string& name : gone) {
    const auto since = departed.try_emplace(name, snapshot.now).first;
    if (snapshot.now - since->second < kKeepDeparted) continue;
    departed.erase(since);
    Forget(name);
  }
}

// The counters of a hidden model stay in the sum of kOtherModels. If they left it, the sum would
// fall, and Prometheus would take that for a restart.
void Metrics::State::Forget(const std::string& name) {
  const bool was_shown = shown.erase(name) > 0;
  if (const auto history = histories.find(name); history != histories.end()) {
    if (!was_shown) {
      if (!other_totals) other_totals.emplace();
      other_totals->Add(history->second.ended);
    }
    histories.erase(history);
  }
  if (const auto counters = ends.find(name); counters != ends.end()) {
    if (!was_shown) {
      if (!other_ends) other_ends.emplace();
      for (size_t i = 0; i < kReasons.size(); ++i) (*other_ends)[i] += counters->second->counts[i];
    }
    ends.erase(counters);
  }
}

// A restricted reader sees a model by one name until its series end. Otherwise an unloaded model
// would enter the sum of kOtherModels, and leave it when it is loaded again.
void Metrics::State::KeepShown(Snapshot* snapshot) {
  if (!snapshot->visible) return;
  std::set<std::string>& visible = *snapshot->visible;
  for (const std::string& name : shown) {
    if (!snapshot->served.contains(name)) visible.insert(name);
  }
  for (const std::string& name : visible) {
    if (histories.contains(name) || ends.contains(name)) shown.insert(name);
  }
}

Metrics::Metrics(std::string prefix) : state_(std::make_unique<State>(std::move(prefix))) {}

Metrics::~Metrics() = default;

void Metrics::CountHttp(std::string_view method, std::string_view route, int status) {
  const std::lock_guard lock(state_->mutex);
  ++state_->http[{KnownMethod(method), std::string(route.empty() ? "unmatched" : route), status}];
}

std::shared_ptr<Metrics::RequestEnds> Metrics::EndsOf(const std::string& model_name) {
  const std::lock_guard lock(state_->mutex);
  std::shared_ptr<RequestEnds>& ends = state_->ends[model_name];
  if (!ends) ends = std::make_shared<RequestEnds>();
  return ends;
}

void Metrics::Count(RequestEnds& ends, FinishedReason reason) {
  ++ends.counts[static_cast<size_t>(reason)];
}

void Metrics::Track(Model model) {
  const std::lock_guard lock(state_->mutex);
  state_->ends.try_emplace(model.name, std::make_shared<RequestEnds>());
  State::History& history = state_->histories[model.name];
  history.FoldEnded();  // bounds the list between scrapes
  history.engines.push_back(std::move(model));
}

// The io threads need the lock for each finished request, so most of the text is made without it.
std::string Metrics::Text(const Snapshot& given) {
  Snapshot snapshot = given;
  Families families(state_->prefix);
  const State::Collected all = [&] {
    const std::lock_guard lock(state_->mutex);
    return state_->Collect(&snapshot, families);
  }();
  AddMemory(families, snapshot);
  for (const auto& [name, sum] : all.totals) AddCounters(families, name, sum);
  for (const auto& [name, sums] : all.ends) {
    for (size_t i = 0; i < kReasons.size(); ++i) {
      families.Counter("request_success_total", "Ended requests, by reason.",
                       {{"finished_reason", std::string(kReasons[i])}, {"model_name", name}},
                       static_cast<double>(sums[i]));
    }
  }
  for (const auto& [key, count] : all.http) {
    const auto& [method, route, status] = key;
    families.Counter(
        "http_requests_total", "HTTP requests answered (499: the client left).",
        {{"method", std::string(method)}, {"route", route}, {"status", std::to_string(status)}},
        static_cast<double>(count));
  }
  AddKeys(families, snapshot);
  AddJobs(families, snapshot);
  AddProcess(families, snapshot);
  return families.Text();
}

}  // namespace tandem::server
