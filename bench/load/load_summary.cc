#include "bench/load/load_summary.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/base/check.h"

namespace tandem::bench {
namespace {

using Json = nlohmann::ordered_json;
using Outcome = RequestRecord::Outcome;

__attribute__((format(printf, 2, 3))) void Print(std::string& out, const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  out += line;
}

void Print(std::string& out, const char* name, const Distribution& d) {
  if (d.n == 0) return;
  Print(out, "%-13s p50 %.2f  p90 %.2f  p95 %.2f  p99 %.2f  max %.2f ms (of %lld)\n", name, d.p50,
        d.p90, d.p95, d.p99, d.max, static_cast<long long>(d.n));
}

Json ToJson(const Distribution& d) {
  return {{"n", d.n},     {"p50", d.p50}, {"p90", d.p90},
          {"p95", d.p95}, {"p99", d.p99}, {"max", d.max}};
}

}  // namespace

double Percentile(const std::vector<double>& sorted, double p) {
  TANDEM_CHECK(p > 0 && p <= 1);
  if (sorted.empty()) return 0;
  const auto n = static_cast<double>(sorted.size());
  // The small step back keeps 0.9 * 10 at rank 9 despite rounding.
  const auto rank = static_cast<size_t>(std::ceil(p * n - 1e-9));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

Distribution Distribute(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {.n = static_cast<int64_t>(values.size()),
          .p50 = Percentile(values, 0.5),
          .p90 = Percentile(values, 0.9),
          .p95 = Percentile(values, 0.95),
          .p99 = Percentile(values, 0.99),
          .max = values.empty() ? 0 : values.back()};
}

LoadSummary Summarize(const LoadRun& run) {
  LoadSummary summary;
  summary.wall_s = run.wall_s;
  summary.lateness_ms = run.lateness_s * 1e3;
  summary.connections = run.connections;
  std::vector<double> first, token, answer;
  for (const RequestRecord& record : run.records) {
    if (record.outcome == Outcome::kAborted) {
      ++summary.aborted;
      continue;
    }
    if (record.outcome == Outcome::kFailed) {
      ++summary.failed;
      LoadSummary::Fault& fault = summary.faults[record.fault];
      if (fault.count++ == 0) fault.example = record.detail;
      continue;
    }
    ++summary.ok;
    const int64_t tokens = record.has_usage ? record.usage.completion_tokens : record.pieces;
    if (!record.has_usage) ++summary.without_usage;
    if (tokens != record.asked_tokens) ++summary.other_length;
    summary.output_tokens += tokens;
    summary.prompt_tokens += record.usage.prompt_tokens;
    summary.cached_tokens += record.usage.cached_tokens;
    answer.push_back((record.end_s - record.due_s) * 1e3);
    if (record.first_s < 0) continue;  // not streamed, or without text
    first.push_back((record.first_s - record.due_s) * 1e3);
    if (tokens > 1) {
      token.push_back((record.last_s - record.first_s) * 1e3 / static_cast<double>(tokens - 1));
    }
  }
  if (run.wall_s > 0) {
    summary.output_tokens_per_s = static_cast<double>(summary.output_tokens) / run.wall_s;
    summary.requests_per_s = static_cast<double>(summary.ok) / run.wall_s;
  }
  summary.first_token_ms = Distribute(std::move(first));
  summary.gap_ms = Distribute({run.gaps_ms.begin(), run.gaps_ms.end()});
  summary.token_ms = Distribute(std::move(token));
  summary.answer_ms = Distribute(std::move(answer));
  return summary;
}

void AddServerUsage(LoadSummary& summary, const ProcessUsage& before, const ProcessUsage& after) {
  summary.has_server = true;
  summary.server_cpu_s = after.cpu_s - before.cpu_s;
  summary.server_rss_bytes = after.rss_bytes;
  summary.server_peak_rss_bytes = after.peak_rss_bytes;
  summary.server_thread_cpu_s.clear();
  for (const ProcessUsage::Thread& thread : after.threads) {
    for (const ProcessUsage::Thread& earlier : before.threads) {
      if (earlier.tid != thread.tid || thread.cpu_s <= earlier.cpu_s) continue;
      summary.server_thread_cpu_s.push_back(thread.cpu_s - earlier.cpu_s);
    }
  }
  std::sort(summary.server_thread_cpu_s.begin(), summary.server_thread_cpu_s.end(),
            std::greater<>());
}

std::string Describe(const LoadSummary& s) {
  std::string out;
  Print(out, "requests      %lld ok, %lld failed, %lld aborted in %.2f s; %.2f/s\n",
        static_cast<long long>(s.ok), static_cast<long long>(s.failed),
        static_cast<long long>(s.aborted), s.wall_s, s.requests_per_s);
  for (const auto& [kind, fault] : s.faults) {
    Print(out, "  failed      %lld x %s%s%.200s\n", static_cast<long long>(fault.count),
          kind.c_str(), fault.example.empty() ? "" : ": ", fault.example.c_str());
  }
  if (s.other_length > 0) {
    Print(out, "  note        %lld responses differ from the requested length\n",
          static_cast<long long>(s.other_length));
  }
  if (s.without_usage > 0) {
    Print(out,
          "  note        %lld responses have no usage; each streamed chunk counts as one token\n",
          static_cast<long long>(s.without_usage));
  }
  Print(out, "tokens        %lld prompt (%lld cached = %.1f %%), %lld output\n",
        static_cast<long long>(s.prompt_tokens), static_cast<long long>(s.cached_tokens),
        s.prompt_tokens > 0
            ? 100 * static_cast<double>(s.cached_tokens) / static_cast<double>(s.prompt_tokens)
            : 0.0,
        static_cast<long long>(s.output_tokens));
  Print(out, "throughput    %.1f output tokens/s\n", s.output_tokens_per_s);
  Print(out, "first token  ", s.first_token_ms);
  Print(out, "inter-token  ", s.gap_ms);
  Print(out, "per token    ", s.token_ms);
  Print(out, "full response", s.answer_ms);
  for (const ProbeSummary& probe : s.probes) {
    Print(out, "%-13s p50 %.2f  p99 %.2f  p99.9 %.2f  max %.2f ms (of %lld)\n", probe.path.c_str(),
          probe.p50, probe.p99, probe.p999, probe.max, static_cast<long long>(probe.ok));
    if (probe.failed > 0) {
      Print(out, "  failed      %lld: %.200s\n", static_cast<long long>(probe.failed),
            probe.fault.c_str());
    }
  }
  if (s.lateness_ms > 5) {
    Print(out, "  note        the generator sent requests up to %.1f ms late\n", s.lateness_ms);
  }
  const double wall = std::max(s.wall_s, 1e-9);
  Print(out, "cpu           generator %.2f s = %.1f %% of a core", s.generator_cpu_s,
        100 * s.generator_cpu_s / wall);
  if (s.has_server) {
    Print(out, "; server %.2f s = %.1f %%; generator's share %.1f %%\n", s.server_cpu_s,
          100 * s.server_cpu_s / wall,
          100 * s.generator_cpu_s / std::max(s.server_cpu_s + s.generator_cpu_s, 1e-9));
    Print(out, "  threads    ");
    for (size_t i = 0; i < std::min<size_t>(s.server_thread_cpu_s.size(), 8); ++i) {
      Print(out, " %.1f %%", 100 * s.server_thread_cpu_s[i] / wall);
    }
    Print(out, "\nmemory        server %.1f MiB, peak %.1f MiB\n",
          static_cast<double>(s.server_rss_bytes) / 1048576,
          static_cast<double>(s.server_peak_rss_bytes) / 1048576);
  } else {
    Print(out, "\n");
  }
  return out;
}

std::string ToJson(const LoadSummary& s) {
  Json faults = Json::object();
  for (const auto& [kind, fault] : s.faults) {
    faults[kind] = {{"count", fault.count}, {"example", fault.example}};
  }
  Json out{{"ok", s.ok},
           {"failed", s.failed},
           {"aborted", s.aborted},
           {"faults", faults},
           {"other_length", s.other_length},
           {"without_usage", s.without_usage},
           {"wall_s", s.wall_s},
           {"lateness_ms", s.lateness_ms},
           {"connections", s.connections},
           {"prompt_tokens", s.prompt_tokens},
           {"cached_tokens", s.cached_tokens},
           {"output_tokens", s.output_tokens},
           {"output_tokens_per_s", s.output_tokens_per_s},
           {"requests_per_s", s.requests_per_s},
           {"first_token_ms", ToJson(s.first_token_ms)},
           {"gap_ms", ToJson(s.gap_ms)},
           {"token_ms", ToJson(s.token_ms)},
           {"answer_ms", ToJson(s.answer_ms)},
           {"generator_cpu_s", s.generator_cpu_s}};
  out["probes"] = Json::array();
  for (const ProbeSummary& probe : s.probes) {
    out["probes"].push_back({{"path", probe.path},
                             {"ok", probe.ok},
                             {"failed", probe.failed},
                             {"fault", probe.fault},
                             {"p50", probe.p50},
                             {"p99", probe.p99},
                             {"p999", probe.p999},
                             {"max", probe.max}});
  }
  if (s.has_server) {
    out["server_cpu_s"] = s.server_cpu_s;
    out["server_rss_bytes"] = s.server_rss_bytes;
    out["server_peak_rss_bytes"] = s.server_peak_rss_bytes;
    out["server_thread_cpu_s"] = s.server_thread_cpu_s;
  }
  // A server's message may be invalid UTF-8.
  return out.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tandem::bench
