#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/client/completion_parser.h"
#include "bench/client/http_target.h"
#include "bench/load/load_prompts.h"

namespace tandem::bench {

// Result of one request. Times are seconds since the run began. Latencies count from `due_s`, so
// that in an open loop neither a slow server nor a slow generator can hide a delay.
struct RequestRecord {
  enum class Outcome {
    kOk,       // complete answer
    kAborted,  // our client left as planned
    kFailed,   // see `fault`
  };
  Outcome outcome = Outcome::kFailed;
  std::string fault;   // kind for counting: "status 503", "timeout", "closed early"
  std::string detail;  // the server's message
  double due_s = 0;
  double sent_s = 0;
  double first_s = -1;  // first text; negative: none
  double last_s = -1;   // last text
  double end_s = 0;
  int64_t pieces = 0;  // events with text
  int64_t asked_tokens = 0;
  bool has_usage = false;
  CompletionUsage usage;
};

struct LoadRunOptions {
  std::string path;  // "/v1/completions"
  // A closed loop keeps `streams` requests in flight until `requests` are sent (0: no limit) or
  // `duration_s` has passed (0: no limit). One of the limits is required. An open loop
  // sends a request at each of `arrivals`, regardless of requests in flight.
  int64_t streams = 0;  // 0: open loop
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
  double wall_s = 0;           // from the first due time to the last end
  double lateness_s = 0;       // longest delay between due and sent
  int64_t connections = 0;     // number opened
};

// Runs a load from one thread. Throws kUnavailable if the server cannot be reached.
LoadRun RunLoad(const HttpTarget& target, const PromptMaker& prompts,
                const LoadRunOptions& options);

}  // namespace tandem::bench
