#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

#include "engine/base/error.h"
#include "engine/base/job_context.h"

namespace tandem::server {

// The result of one job's process.
struct JobRunEnd {
  enum class State { kSucceeded, kFailed, kStopped };
  State state = State::kFailed;
  std::string result_json;                // of kSucceeded
  ErrorCode code = ErrorCode::kInternal;  // of kFailed
  std::string error;
};

struct JobRun {
  std::filesystem::path program;
  std::string verb;
  std::filesystem::path dir;  // holds spec.json; no other job uses it
  bool leads_group = true;    // false: the process stays in our process group and ends with it
  int max_restarts = 3;
};

// Runs `tandem VERB --job DIR` to its end. It adopts a process that already works in DIR, and
// returns a successful result that DIR already holds. A process killed from outside starts again,
// up to max_restarts times without a new checkpoint. `report` receives each event of the process.
JobRunEnd RunJobProcess(const JobRun& run, std::stop_token stop,
                        const std::function<void(const ProgressEvent&)>& report);

// Ends the process that works in `dir`, if any: SIGTERM first, SIGKILL after a minute.
void EndJobProcess(const std::filesystem::path& dir);

}  // namespace tandem::server
