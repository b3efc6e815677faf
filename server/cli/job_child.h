#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stop_token>
#include <thread>

#include "engine/base/job_context.h"

namespace tandem::server {

// What the verbs that run as a job's process (`tandem VERB --job DIR`) have in common: they read
// DIR/spec.json, write events.jsonl and end in result.json, or, when they were stopped, in the exit
// code that asks to be started again.

inline constexpr int kExitTryAgain = 75;
// Another process works in the directory (EX_UNAVAILABLE).
inline constexpr int kExitInUse = 69;

// Turns SIGTERM and SIGINT into a stop request for as long as it lives. Handlers may do almost
// nothing, so they write one byte into a pipe that a thread reads. One at a time.
class StopOnSignal {
 public:
  StopOnSignal();
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

  std::stop_token token() const { return stop_.get_token(); }

 private:
  struct OldHandlers;

  std::array<int, 2> ends_{};
  std::unique_ptr<OldHandlers> old_;
  std::stop_source stop_;
  std::thread watcher_;
};

// A job gives way to everything else on the machine: idle scheduling class, first to go when memory
// runs out, and a ceiling of its own. What the system refuses is left as it is.
void LowerPriority(int64_t memory_max_bytes);

// events.jsonl for whoever watches the job, the same words on standard output for people.
class EventLog {
 public:
  explicit EventLog(const std::filesystem::path& dir);
  void Write(const ProgressEvent& event);

 private:
  void Sync();

  const std::filesystem::path path_;
  std::ofstream file_;
};

// The last word of a job. A run that was stopped leaves none: kExitTryAgain says that it goes on
// when it is started again.
void WriteResult(const std::filesystem::path& dir, const nlohmann::ordered_json& result);
void RemoveResult(const std::filesystem::path& dir);  // of an earlier run in this directory

// A job at work in its directory, as long as it lives: what an earlier run said there at its end is
// gone, what is reported stands in events.jsonl, SIGTERM asks it to stop. One at a time.
class OpenJob {
 public:
  explicit OpenJob(const std::filesystem::path& dir);

  const JobContext& context() const { return context_; }

 private:
  EventLog events_;
  StopOnSignal stop_;
  JobContext context_;
};

// The main of a job's process. Locks DIR/work.lock, throws as LockRunDirectory before it touches
// anything in the directory, then calls `work`. Writes what `work` throws into result.json and
// rethrows it; `out_of_memory` is the message for std::bad_alloc.
int EndInResult(const std::filesystem::path& dir, const char* out_of_memory,
                const std::function<int()>& work);

}  // namespace tandem::server
