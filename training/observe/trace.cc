#include "training/observe/trace.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace tandem::training {
namespace {

constexpr std::array kLaneNames = {"steps", "compute", "data", "checkpoint"};

double Micros(Trace::Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

std::string NameOf(std::string_view name, std::string_view part) {
  return part.empty() ? std::string(name) : std::string(name) + " " + std::string(part);
}

}  // namespace

std::string Trace::ChromeJson() const {
  using nlohmann::ordered_json;
  ordered_json events = ordered_json::array();
  for (size_t lane = 0; lane < kLaneNames.size(); ++lane) {
    events.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", 1},
                      {"tid", lane},
                      {"args", {{"name", kLaneNames[lane]}}}});
    events.push_back({{"ph", "M"},
                      {"name", "thread_sort_index"},
                      {"pid", 1},
                      {"tid", lane},
                      {"args", {{"sort_index", lane}}}});
  }
  Clock::time_point start = Clock::time_point::max();
  for (const Span& span : spans_) start = std::min(start, span.from);
  for (const Span& span : spans_) {
    const bool is_step = span.lane == Lane::kSteps;
    events.push_back(
        {{"ph", "X"},
         {"name", is_step ? "step " + std::to_string(span.step) : NameOf(span.name, span.part)},
         {"cat", kLaneNames[static_cast<size_t>(span.lane)]},
         {"pid", 1},
         {"tid", static_cast<int>(span.lane)},
         {"ts", Micros(span.from - start)},
         {"dur", Micros(span.to - span.from)},
         {"args", {{"step", span.step}}}});
  }
  return ordered_json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump() + "\n";
}

std::string Trace::Summary() const {
  struct Sum {
    double micros = 0;
    int64_t calls = 0;
  };
  std::map<std::string, Sum> sums;
  double steps_micros = 0;
  int64_t steps = 0;
  for (const Span& span : spans_) {
    const double micros = Micros(span.to - span.from);
    if (span.lane == Lane::kSteps) {
      steps_micros += micros;
      ++steps;
      continue;
    }
    Sum& sum = sums[NameOf(span.name, span.part)];
    sum.micros += micros;
    ++sum.calls;
  }
  std::vector<std::pair<std::string, Sum>> rows(sums.begin(), sums.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.micros > b.second.micros; });

  char line[160];
  std::snprintf(line, sizeof line, "%lld steps, %.3f ms each\n", static_cast<long long>(steps),
                steps > 0 ? steps_micros / 1e3 / static_cast<double>(steps) : 0);
  std::string text = line;
  std::snprintf(line, sizeof line, "%-28s %8s %12s %8s\n", "what", "calls", "ms", "share");
  text += line;
  for (const auto& [name, sum] : rows) {
    std::snprintf(line, sizeof line, "%-28s %8lld %12.3f %7.1f%%\n", name.c_str(),
                  static_cast<long long>(sum.calls), sum.micros / 1e3,
                  steps_micros > 0 ? 100 * sum.micros / steps_micros : 0);
    text += line;
  }
  return text;
}

}  // namespace tandem::training
