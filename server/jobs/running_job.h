#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "engine/base/job_context.h"
#include "server/jobs/child_process.h"
#include "server/jobs/job_files.h"
#include "server/jobs/job_outcome.h"

namespace tandem::server {

// What the running training job reported last. Unset: nothing of the kind yet, or no job runs.
struct TrainingFigures {
  int64_t steps = 0;  // reported since the server began
  std::optional<double> loss{};
  std::optional<double> tokens_per_second{};
};

// What a batch of events says about a job as a whole.
struct JobProgress {
  std::optional<double> fraction;
  bool checkpoint = false;
  std::optional<TrainingFigures> figures;  // `steps` of them since the batch began

  void Add(const ProgressEvent& event);
};

// In a job's directory: spec.json (from the supervisor), events.jsonl and result.json (from the
// child), log.txt (the child's output), run.lock (see ChildProcess).
std::filesystem::path SpecFile(const std::filesystem::path& dir);
std::filesystem::path EventsFile(const std::filesystem::path& dir);
std::filesystem::path LogFile(const std::filesystem::path& dir);

// What a job's success brings about, on a thread of its own: nobody waits for it but the job.
class Publication {
 public:
  // `on_end` is called on that thread when `publish` has returned or thrown.
  Publication(std::function<void()> publish, std::function<void()> on_end);
  ~Publication();  // waits for the end
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;

  bool has_ended() const { return has_ended_; }
  // What was thrown; null: nothing. REQUIRES: it has ended.
  const std::exception_ptr& fault() const { return fault_; }

 private:
  std::exception_ptr fault_;
  std::atomic<bool> has_ended_{false};
  std::thread thread_;
};

// One job's process and the files it writes, as the supervisor's thread watches them. Knows neither
// the store nor other jobs.
class RunningJob {
 public:
  using Clock = std::chrono::steady_clock;

  RunningJob(std::string id, std::filesystem::path dir, ChildProcess child, int64_t events_offset);

  const std::string& id() const { return id_; }
  const std::filesystem::path& dir() const { return dir_; }
  ChildProcess& child() { return child_; }
  const ChildProcess& child() const { return child_; }
  int64_t events_offset() const { return events_.offset(); }

  // SIGTERM; and once `grace` has passed since the first call, SIGKILL.
  void End(std::chrono::milliseconds grace);
  bool is_asked_to_end() const { return kill_at_.has_value(); }

  // Reads a bounded piece of new events: all there are, of an ended process. True if there is more.
  bool ReadEvents(JobProgress& progress);
  // Whether the log or the events have grown since the last call.
  bool HasGrown();
  // What the process left behind. REQUIRES: it has ended.
  EndedRun ReadEnd(const ExitStatus& exit) const;

  std::optional<Outcome> outcome{};  // decided, and perhaps not in the store yet
  std::string result_json{};
  std::unique_ptr<Publication> publication{};  // under way, or ended and not yet looked at

 private:
  std::string id_;
  std::filesystem::path dir_;
  ChildProcess child_;
  EventTail events_;
  std::optional<Clock::time_point> kill_at_;  // once asked to end
  bool killed_ = false;
  int64_t seen_bytes_ = 0;  // of both files
};

}  // namespace tandem::server
