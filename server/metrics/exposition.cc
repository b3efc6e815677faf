#include "server/metrics/exposition.h"

#include <array>
#include <charconv>
#include <cmath>

namespace tandem::server {
namespace {

std::string_view TypeName(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "untyped";
}

// The format escapes quotes only inside of label values.
void AppendEscaped(std::string_view text, bool is_label, std::string& out) {
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\\' || (c == '"' && is_label)) {
      out += {'\\', c};
    } else {
      out += c;
    }
  }
}

void AppendNumber(double value, std::string& out) {
  constexpr int kDigits = 16;
  if (std::isnan(value)) {
    out += "NaN";
  } else if (std::isinf(value)) {
    out += value > 0 ? "+Inf" : "-Inf";
  } else {
    std::array<char, 32> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value,
                                   std::chars_format::general, kDigits);
    out.append(digits.data(), end.ptr);
  }
}

class ExpositionWriter {
 public:
  void Family(const MetricFamily& family) {
    if (!family.help.empty()) {
      text_ += "# HELP " + family.name + " ";
      AppendEscaped(family.help, false, text_);
      text_ += "\n";
    }
    text_.append("# TYPE ").append(family.name).append(" ").append(TypeName(family.type)) += "\n";
    for (const Metric& metric : family.metrics) {
      if (family.type == MetricType::kHistogram) {
        Histogram(family.name, metric);
      } else {
        Sample(family.name, metric, metric.value);
      }
    }
  }

  std::string TakeText() { return std::move(text_); }

 private:
  void Histogram(const std::string& name, const Metric& metric) {
    const uint64_t count = metric.buckets.empty() ? 0 : metric.buckets.back().cumulative_count;
    Sample(name + "_count", metric, static_cast<double>(count));
    Sample(name + "_sum", metric, metric.value);
    for (const Metric::Bucket& bucket : metric.buckets) {
      Sample(name + "_bucket", metric, static_cast<double>(bucket.cumulative_count),
             &bucket.upper_bound);
    }
  }

  // `bound` becomes the label `le`.
  void Sample(const std::string& name, const Metric& metric, double value,
              const double* bound = nullptr) {
    text_ += name;
    char before = '{';
    for (const auto& [label, text] : metric.labels) {
      text_.append(1, before).append(label) += "=\"";
      AppendEscaped(text, true, text_);
      text_ += '"';
      before = ',';
    }
    if (bound != nullptr) {
      text_.append(1, before) += "le=\"";
      AppendNumber(*bound, text_);
      text_ += '"';
      before = ',';
    }
    text_ += before == ',' ? "} " : " ";
    AppendNumber(value, text_);
    text_ += "\n";
  }

  std::string text_;
};

}  // namespace

std::string ExpositionText(const std::vector<MetricFamily>& families) {
  ExpositionWriter writer;
  for (const MetricFamily& family : families) writer.Family(family);
  return writer.TakeText();
}

}  // namespace tandem::server
