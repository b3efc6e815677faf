#include "bench/load/probe.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "bench/client/timed_receive.h"
#include "bench/load/load_summary.h"
#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/thread_name.h"

namespace tandem::bench {
namespace {

using Clock = std::chrono::steady_clock;

double Now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

// The place of the path's slash: 0, or behind the authority of a URL.
size_t PathBegin(const std::string& path) {
  if (path.starts_with('/')) return 0;
  const size_t scheme = path.find("://");
  const size_t slash = scheme == std::string::npos ? scheme : path.find('/', scheme + 3);
  if (slash != std::string::npos) return slash;
  throw Error(ErrorCode::kInvalidArgument,
              "a probe needs a path such as /health, or a URL with a path, got '" + path + "'");
}

HttpTarget TargetOf(const HttpTarget& target, const std::string& path) {
  const size_t begin = PathBegin(path);
  return begin == 0 ? target : ParseTarget(path.substr(0, begin), "");
}

}  // namespace

Probe::Probe(const HttpTarget& target, const ProbeOptions& options)
    : target_(TargetOf(target, options.path)),
      path_(options.path.substr(PathBegin(options.path))),
      options_(options),
      keeps_noting_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  if (keeps_noting_) NoteArrivals(keeps_noting_.fd());
  TANDEM_CHECK(options.interval_s > 0);
  summary_.path = options.path;
  thread_ = std::thread([this] { Run(); });
}

Probe::~Probe() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

ProbeSummary Probe::Stop() {
  stopping_ = true;
  thread_.join();
  std::sort(times_ms_.begin(), times_ms_.end());
  if (times_ms_.empty()) return summary_;
  summary_.p50 = Percentile(times_ms_, 0.5);
  summary_.p99 = Percentile(times_ms_, 0.99);
  summary_.p999 = Percentile(times_ms_, 0.999);
  summary_.max = times_ms_.back();
  return summary_;
}

void Probe::Run() {
  NameThisThread("tandem-probe");
  const double begin = Now();
  int64_t n_asked = 0;
  do {
    const double due = begin + static_cast<double>(n_asked++) * options_.interval_s;
    const double wait = due - Now();
    if (wait > 0) std::this_thread::sleep_for(std::chrono::duration<double>(wait));
    AskOnce(due);
  } while (!stopping_);
}

void Probe::AskOnce(double due_s) {
  HttpAnswer answer;
  const double began_s = Now();
  const auto fault = ErrorOf([&] { answer = Ask(target_, "GET", path_, "", options_.timeout_s); });
  // The age comes from a clock that may be set meanwhile.
  const double now_s = Now();
  const double arrived_s = now_s - std::min(answer.age_s, now_s - began_s);
  if (answer.status == 200) {
    ++summary_.ok;
    // A request that was due before the last answer has waited for the server. One that began late
    // for another reason has not.
    const double waited_s = std::max(0.0, free_since_s_ - due_s);
    times_ms_.push_back((waited_s + arrived_s - began_s) * 1e3);
  } else if (summary_.failed++ == 0) {
    summary_.fault = fault ? fault->what() : "status " + std::to_string(answer.status);
  }
  free_since_s_ = arrived_s;
}

}  // namespace tandem::bench
