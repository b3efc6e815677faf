#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

#include "engine/base/error.h"
#include "engine/base/job_context.h"

namespace tandem::server {

// How the process of one job has ended.
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
  std::filesystem::path dir;  // holds spec.json; of this job alone
  bool leads_group = true;    // false: it ends with whoever ends us
  int max_restarts = 3;
};

// Starts `tandem VERB --job DIR`, or takes up the process that works there already, and waits for
// its end. One that was ended from outside is started again. A result that lies there is the job's:
// it ended when nobody looked. `report` gets its events as it writes them.
JobRunEnd RunJobProcess(const JobRun& run, std::stop_token stop,
                        const std::function<void(const ProgressEvent&)>& report);

// Ends the process that works in `dir`, if there is one: asks, and after a minute makes it.
void EndJobProcess(const std::filesystem::path& dir);

}  // namespace tandem::server
