#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "server/metrics/exposition.h"
#include "server/metrics/metrics.h"

// The parts of the text of Metrics. Internal to it.
namespace tandem::server {

// Metric families under construction, in the order of their first use.
class MetricFamilies {
 public:
  using Labels = decltype(Metric::labels);

  explicit MetricFamilies(std::string prefix) : prefix_(std::move(prefix) + ":") {}

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

// The model's name as the snapshot's reader sees it.
inline std::string ShownName(const Metrics::Snapshot& snapshot, const std::string& name) {
  const bool is_visible = !snapshot.visible || snapshot.visible->contains(name);
  return is_visible ? name : std::string(Metrics::kOtherModels);
}

}  // namespace tandem::server
