#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/jobs/job.h"

namespace tandem::server {

// A fine-tuning job keeps as its request what the API needs of it later: base, files, effective
// hyperparameters. The spec that its process reads lies in its directory.

// "ft:<base>:local:<suffix>:<6 chars>": the name under which its result answers.
std::string FineTunedNameOf(const Job& job);
// The id of the model that its result adapts, or was made from.
std::string FineTunedBaseOf(const Job& job);
// How many steps it takes.
int64_t FineTuningStepsOf(const Job& job);
// Files that it reads.
std::vector<std::string> FineTuningFilesOf(const Job& job);
// What of its id is its own.
std::string ShortIdOf(const Job& job);

// What publishing adds, once: in the job's directory, so that it survives.
struct FineTuningResult {
  std::vector<std::string> result_files;
  int64_t trained_tokens = 0;
  int64_t steps = 0;
  nlohmann::ordered_json ToJson() const;
};
void WriteFineTuningResult(const Job& job, const FineTuningResult& result);
std::optional<FineTuningResult> ReadFineTuningResult(const Job& job);

// Why a job has failed, as the API tells it: what is wrong with a file of the request names the
// lines, at most ten of them, and the parameter. REQUIRES: job.error is set.
struct FineTuningError {
  std::string code;
  std::string message;
  std::string param;  // empty: none
};
FineTuningError FineTuningErrorOf(const Job& job);
// Replaces `path` by "the file": a path on the server tells a client nothing.
std::string WithoutPath(std::string text, const std::string& path);

// The official job object, with every key that it requires.
nlohmann::ordered_json FineTuningJobJson(const Job& job, int64_t now);

}  // namespace tandem::server
