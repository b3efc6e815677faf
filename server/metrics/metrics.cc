#include "server/metrics/metrics.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "server/metrics/engine_metrics.h"
#include "server/metrics/metric_families.h"
#include "server/metrics/process_metrics.h"

namespace tandem::server {
namespace {

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

}  // namespace

class Metrics::RequestEnds {
 public:
  std::array<std::atomic<int64_t>, kReasons.size()> counts{};
};

using EndCounts = std::array<int64_t, kReasons.size()>;

struct Metrics::State {
  // Engines of one model name. The counters of ended engines are added to `ended`.
  struct History {
    EngineTotals ended;
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
  std::optional<EngineTotals> other_totals;
  std::optional<EndCounts> other_ends;

  // Figures that a scrape shows beside the gauges, by shown name.
  struct Collected {
    std::map<std::string, EngineTotals> totals;
    std::map<std::string, EndCounts> ends;
    decltype(State::http) http;
  };

  // The next four REQUIRE the mutex held. Collect adds the gauges of the engines itself: a copy of
  // their figures outside the lock would hide that an engine has ended.
  Collected Collect(Snapshot* snapshot, MetricFamilies& families);
  void ForgetDeparted(const Snapshot& snapshot);
  void Forget(const std::string& name);
  void KeepShown(Snapshot* snapshot);
};

Metrics::State::Collected Metrics::State::Collect(Snapshot* snapshot, MetricFamilies& families) {
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
  MetricFamilies families(state_->prefix);
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
