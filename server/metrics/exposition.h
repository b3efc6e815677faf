#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::server {

// Prometheus' text format, version 0.0.4. Plain values; one thread at a time.

enum class MetricType { kCounter, kGauge, kHistogram };

struct Metric {
  struct Bucket {
    uint64_t cumulative_count;
    double upper_bound;  // infinite for the last one
  };

  std::vector<std::pair<std::string, std::string>> labels;  // names are written as they are
  double value = 0;             // sum of the observations in a histogram
  std::vector<Bucket> buckets;  // for histograms, by increasing bound
};

// The metrics of one name.
struct MetricFamily {
  std::string name;
  std::string help;
  MetricType type;
  std::vector<Metric> metrics;
};

// Escapes label values and help texts. Writes numbers with up to 16 digits.
std::string ExpositionText(const std::vector<MetricFamily>& families);

}  // namespace tandem::server
