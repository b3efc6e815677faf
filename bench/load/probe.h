#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "bench/client/http_target.h"

namespace tandem::bench {

struct ProbeOptions {
  // "/health" of the loaded server, or a whole URL, which gets no API key.
  std::string path;
  double interval_s = 0.005;
  double timeout_s = 10;  // of one request
};

// Latencies of a probe, in milliseconds, from the time that a request was due to the arrival of its
// whole answer. Waits of the probe's own thread for a core are not in them, except between the
// start of the connection and the end of the request's bytes.
struct ProbeSummary {
  std::string path;    // as given
  int64_t ok = 0;      // status 200
  int64_t failed = 0;  // all others
  std::string fault;   // of the first failure
  double p50 = 0;
  double p99 = 0;
  double p999 = 0;
  double max = 0;
};

// Sends GET requests to one path, each on a new connection, beside a load. Requests are due at
// fixed intervals. A thread of its own sends them one after the other, so that a busy generator
// does not delay them. At least one is sent.
class Probe {
 public:
  // Starts; paths are those of `target`. Throws kInvalidArgument for an unusable URL.
  Probe(const HttpTarget& target, const ProbeOptions& options);
  ~Probe();
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  // Ends the probe after the request in flight. Call it once.
  ProbeSummary Stop();

 private:
  void Run();
  void AskOnce(double due_s);

  const HttpTarget target_;
  const std::string path_;
  const ProbeOptions options_;
  std::atomic<bool> stopping_{false};
  Socket keeps_noting_;           // so that the kernel notes arrivals between requests too
  double free_since_s_ = 0;       // of the thread: the arrival of the last answer
  ProbeSummary summary_;          // of the thread until it has ended
  std::vector<double> times_ms_;  // likewise; of answers with status 200
  std::thread thread_;
};

}  // namespace tandem::bench
