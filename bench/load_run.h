#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/completion_parser.h"
#include "bench/http_target.h"
#include "bench/load_prompts.h"

namespace tandem::bench {

// What became of one request. Times are seconds since the run began; latencies count from `due_s`,
// so that a generator or server that falls behind in an open loop cannot hide it.
struct RequestRecord {
  enum class Outcome {
    kOk,       // a whole answer
    kAborted,  // our client left, as it was told to
    kFailed,   // `fault` tells
  };
  Outcome outcome = Outcome::kFailed;
  std::string fault;   // a kind to count by: "status 503", "timeout", "closed early"
  std::string detail;  // what the server said
  double due_s = 0;
  double sent_s = 0;
  double first_s = -1;  // first text; below 0: there was none
  double last_s = -1;   // last text
  double end_s = 0;
  int64_t pieces = 0;  // events that carried text
  int64_t asked_tokens = 0;
  bool has_usage = false;
  CompletionUsage usage;
};

struct LoadRunOptions {
  std::string path;  // "/v1/completions"
  // A closed loop keeps `streams` requests in flight until `requests` have been sent (0: no bound)
  // or `duration_s` has passed (0: no bound); at least one of the two. An open loop sends one at
  // each of `arrivals`, whatever is in flight.
  int64_t streams = 0;  // 0: an open loop
  int64_t requests = 0;
  double duration_s = 0;
  std::vector<double> arrivals;
  int64_t first_request_idx = 0;
  double request_timeout_s = 600;
  bool keep_alive = true;
};

struct LoadRun {
  std::vector<RequestRecord> records;
  std::vector<float> gaps_ms;  // between texts of one answer
  double wall_s = 0;           // from the first request due to the last one's end
  double lateness_s = 0;       // the most that a request was sent after it was due
  int64_t connections = 0;     // opened
};

// Runs a load from one thread. Throws kUnavailable when the server cannot be reached at all.
LoadRun RunLoad(const HttpTarget& target, const PromptMaker& prompts,
                const LoadRunOptions& options);

}  // namespace tandem::bench
