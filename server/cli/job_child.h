#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stop_token>
#include <string>
#include <thread>

#include "engine/base/job_context.h"
#include "server/jobs/exit_codes.h"

namespace tandem::server {

class ShownProgress;

// Shared by the verbs that run as a job's process (`tandem VERB --job DIR`). The process reads
// DIR/spec.json and writes DIR/events.jsonl. It ends with DIR/result.json, or, if it was stopped,
// with kExitTryAgain and no result.

// Turns SIGTERM, SIGINT and SIGUSR1 (which mpirun and Slurm forward) into a stop request while it
// lives. The handlers only write one byte to
// a pipe, which is async-signal-safe; a thread reads it. At most one instance at a time.
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

// Lets a job yield to everything else on the machine: SCHED_IDLE, the smallest share of its own
// session, and the highest OOM score. A refusal of these is ignored. A positive `memory_max_bytes`
// also bounds the data segment; throws kUnavailable if that fails.
void LowerPriority(int64_t memory_max_bytes);

// Writes progress to DIR/events.jsonl and, as text, to standard output.
class EventLog {
 public:
  // Borrows `shown` (null: no bar is drawn) for its lifetime.
  explicit EventLog(const std::filesystem::path& dir, const ShownProgress* shown = nullptr);
  void Write(const ProgressEvent& event);

 private:
  void Sync();
  void Print(const std::function<void()>& print) const;

  const std::filesystem::path path_;
  const ShownProgress* const shown_;
  std::ofstream file_;
};

// Writes DIR/result.json, the final outcome of a job. A run that was stopped writes none.
void WriteResult(const std::filesystem::path& dir, const nlohmann::ordered_json& result);
void RemoveResult(const std::filesystem::path& dir);  // the result of an earlier run

// The environment of a job that runs in `dir`. Removes an earlier result, sends reports to
// events.jsonl, and turns SIGTERM into a stop request. At most one instance at a time.
class OpenJob {
 public:
  explicit OpenJob(const std::filesystem::path& dir, const ShownProgress* shown = nullptr);

  const JobContext& context() const { return context_; }

 private:
  EventLog events_;
  StopOnSignal stop_;
  JobContext context_;
};

// The main function of a job's process. Locks DIR/work.lock, then calls `work` and returns its exit
// code. Throws as LockRunDirectory before it changes anything in the directory. Writes an exception
// of `work` to result.json and throws it as an Error. When memory ran out, `memory_advice` ends the
// message.
int EndInResult(const std::filesystem::path& dir, const std::string& memory_advice,
                const std::function<int()>& work);

}  // namespace tandem::server
