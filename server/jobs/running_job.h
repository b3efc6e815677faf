#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/job_context.h"
#include "server/jobs/job_files.h"
#include "server/jobs/job_outcome.h"
#include "server/jobs/job_runner.h"

namespace tandem::server {

// The last report of the running training job. Unset: not reported yet, or no job runs.
struct TrainingFigures {
  int64_t steps = 0;  // reported since the server started
  std::optional<double> loss{};
  std::optional<double> tokens_per_second{};
};

// The sum of a batch of events.
struct JobProgress {
  std::optional<double> fraction;
  bool checkpoint = false;
  std::optional<TrainingFigures> figures;  // `steps` counts this batch only

  void Add(const ProgressEvent& event);
};

// Files of a job's directory. The supervisor writes spec.json, the child events.jsonl and
// result.json; log.txt holds the child's output. ChildProcess describes run.lock.
std::filesystem::path SpecFile(const std::filesystem::path& dir);
std::filesystem::path EventsFile(const std::filesystem::path& dir);
std::filesystem::path LogFile(const std::filesystem::path& dir);

// Publishes a successful job on its own thread, so that only this job waits.
class Publication {
 public:
  // `on_end` runs on that thread after `publish` has returned or thrown.
  Publication(std::function<void()> publish, std::function<void()> on_end);
  ~Publication();  // waits for the end
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;

  bool has_ended() const { return has_ended_; }
  // The exception of `publish`; null: none. REQUIRES: it has ended.
  const std::optional<Error>& error() const { return error_; }

 private:
  std::optional<Error> error_;
  std::atomic<bool> has_ended_{false};
  std::thread thread_;
};

// One job's process and its files, as the supervisor's thread watches them. Knows neither the store
// nor other jobs.
class RunningJob {
 public:
  using Clock = std::chrono::steady_clock;

  RunningJob(std::string id, std::filesystem::path dir, std::unique_ptr<JobProcess> process,
             int64_t events_offset);

  const std::string& id() const { return id_; }
  const std::filesystem::path& dir() const { return dir_; }
  JobProcess& process() { return *process_; }
  const JobProcess& process() const { return *process_; }
  int64_t events_offset() const { return events_.offset(); }

  // Sends SIGTERM; later calls send SIGKILL once `grace` has passed since the first.
  void End(std::chrono::milliseconds grace);
  bool is_asked_to_end() const { return kill_at_.has_value(); }

  // Reads a bounded piece of new events, or all events of an ended process. True if there are more.
  bool ReadEvents(JobProgress& progress);
  // Whether the log or the events have grown since the last call.
  bool HasGrown();
  // The state that the process left. REQUIRES: it has ended.
  EndedRun ReadEnd(const ExitStatus& exit) const;

  std::optional<Outcome> outcome{};  // decided, but perhaps not in the store yet
  std::string result_json{};
  std::unique_ptr<Publication> publication{};  // in progress, or ended and not yet handled

 private:
  std::string id_;
  std::filesystem::path dir_;
  std::unique_ptr<JobProcess> process_;  // never null
  EventTail events_;
  std::optional<Clock::time_point> kill_at_;  // once asked to end
  bool killed_ = false;
  int64_t seen_bytes_ = 0;  // of both files
};

}  // namespace tandem::server
