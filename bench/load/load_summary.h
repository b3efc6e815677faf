#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/load/load_run.h"
#include "bench/load/probe.h"
#include "bench/measure/process_usage.h"

namespace tandem::bench {

// Returns the smallest value that a fraction `p` of the values do not exceed (nearest rank), or 0
// without values. REQUIRES: `sorted` ascends, 0 < p <= 1.
double Percentile(const std::vector<double>& sorted, double p);

struct Distribution {
  int64_t n = 0;
  double p50 = 0;
  double p90 = 0;
  double p95 = 0;
  double p99 = 0;
  double max = 0;
};
Distribution Distribute(std::vector<double> values);

// Results of one run. Latencies are those of complete answers, in milliseconds.
struct LoadSummary {
  struct Fault {
    int64_t count = 0;
    std::string example;  // the server's first message
  };
  int64_t ok = 0;
  int64_t aborted = 0;
  int64_t failed = 0;
  std::map<std::string, Fault> faults;
  // Complete answers with another completion_tokens than requested (with ignore_eos: none).
  int64_t other_length = 0;
  int64_t without_usage = 0;  // complete answers whose pieces were counted as tokens

  double wall_s = 0;
  double lateness_ms = 0;
  int64_t connections = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  double output_tokens_per_s = 0;
  double requests_per_s = 0;

  Distribution first_token_ms;  // due to first text
  Distribution gap_ms;          // text to text
  Distribution token_ms;        // per answer: time after the first text / tokens after it
  Distribution answer_ms;       // due to end

  std::vector<ProbeSummary> probes;

  double generator_cpu_s = 0;
  bool has_server = false;  // a process id was given
  double server_cpu_s = 0;
  int64_t server_rss_bytes = 0;
  int64_t server_peak_rss_bytes = 0;
  std::vector<double> server_thread_cpu_s;  // of threads alive during the whole run, descending
};

LoadSummary Summarize(const LoadRun& run);
void AddServerUsage(LoadSummary& summary, const ProcessUsage& before, const ProcessUsage& after);

// Return the summary as text and as JSON.
std::string Describe(const LoadSummary& summary);
std::string ToJson(const LoadSummary& summary);

}  // namespace tandem::bench
