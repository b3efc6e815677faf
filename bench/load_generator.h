#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>

#include "bench/arrivals.h"
#include "bench/load_prompts.h"

namespace tandem::bench {

// `tandem bench http`: a load on any OpenAI-compatible server, alone or alternating with a peer
// (bench/README.md has the protocol).
struct LoadOptions {
  struct Side {
    std::string url;
    std::string api_key;
    std::string model;  // empty: the first that /v1/models names
    int pid = 0;        // of the server, for CPU and memory; 0: not known
  };
  Side server;
  Side peer;      // no url: none
  int pairs = 5;  // with a peer

  // A closed loop of `streams`, or, with a rate, an open one.
  int64_t streams = 1;
  double rate = 0;  // requests/s
  ArrivalOptions::Process arrival = ArrivalOptions::Process::kPoisson;
  int64_t requests = 0;  // with neither of the two: 4 per stream
  double duration_s = 0;
  int64_t warmup = 1;  // requests before each run that are not counted

  PromptOptions prompts;  // `model` is filled per side
  double request_timeout_s = 600;
  bool keep_alive = true;
  std::filesystem::path json_file;  // empty: none
};

// Prints what it measured; returns 0 when no request failed, else 1.
int RunLoadBench(std::ostream& out, const LoadOptions& options);

}  // namespace tandem::bench
