#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/jobs/job.h"

namespace tandem::server {

// The request stored with a fine-tuning job holds the fields that the API needs later: base, files,
// effective hyperparameters. The job's directory holds the spec for its process.

// Model name of the result: "ft:<base>:local:<suffix>:<last 6 characters of the id>".
std::string FineTunedNameOf(const Job& job);
// The id of the base model.
std::string FineTunedBaseOf(const Job& job);
// Total steps of the run.
int64_t FineTuningStepsOf(const Job& job);
// Ids of the training file and, if given, the validation file.
std::vector<std::string> FineTuningFilesOf(const Job& job);
// The job's id without its type prefix.
std::string ShortIdOf(const Job& job);

// Written once to the job's directory when its result is published.
struct FineTuningResult {
  std::vector<std::string> result_files;
  int64_t trained_tokens = 0;
  int64_t steps = 0;
  nlohmann::ordered_json ToJson() const;
};
void WriteFineTuningResult(const Job& job, const FineTuningResult& result);
std::optional<FineTuningResult> ReadFineTuningResult(const Job& job);

// A job's error for the API. A fault of a training file names the parameter and the bad lines, at
// most ten. REQUIRES: job.error is set.
struct FineTuningError {
  std::string code;
  std::string message;
  std::string param;  // empty: none
};
FineTuningError FineTuningErrorOf(const Job& job);
// Replaces `path` by "the file", because a server path means nothing to a client.
std::string WithoutPath(std::string text, const std::string& path);

// OpenAI's job object, with all required keys. `now`: Unix seconds.
nlohmann::ordered_json FineTuningJobJson(const Job& job, int64_t now);

}  // namespace tandem::server
