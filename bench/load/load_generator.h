#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "bench/load/arrivals.h"
#include "bench/load/load_prompts.h"
#include "bench/load/probe.h"

namespace tandem::bench {

// `tandem bench http`: load on any OpenAI-compatible server, alone or alternating with a peer
// (protocol in bench/README.md).
struct LoadOptions {
  struct Side {
    std::string url;
    std::string api_key;
    std::string model;  // empty: the first in /v1/models
    int pid = 0;        // of the server, for CPU and memory; 0: unknown
  };
  Side server;
  Side peer;      // no url: none
  int pairs = 5;  // with a peer

  // A closed loop of `streams`, or with a rate an open loop.
  int64_t streams = 1;
  double rate = 0;  // requests/s
  ArrivalOptions::Process arrival = ArrivalOptions::Process::kPoisson;
  int64_t requests = 0;  // without requests and duration: 4 per stream
  double duration_s = 0;
  int64_t warmup = 1;  // uncounted requests before each run

  PromptOptions prompts;            // `model` is set per side
  std::vector<std::string> probes;  // paths or URLs to ask beside each run, as in ProbeOptions
  double probe_interval_s = ProbeOptions().interval_s;
  double request_timeout_s = 600;
  bool keep_alive = true;
  std::filesystem::path json_file;  // empty: none
};

// Prints the results; returns 0 if no request failed (those of a probe included), else 1.
int RunLoadBench(std::ostream& out, const LoadOptions& options);

}  // namespace tandem::bench
