#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/fine_tuning/fine_tuning_events.h"
#include "server/jobs/job.h"

namespace tandem::server {

class JobSupervisor;
class ModelRegistry;

// Checkpoints of fine-tuning jobs, which requests can name. A checkpoint is a directory
// exports/step-N of its job, created by one rename, or the job's result. No other record exists, so
// a crash cannot make the two differ.

struct FineTuningCheckpoint {
  int64_t step = 0;  // from 1
  std::filesystem::path dir;
  std::string model;  // model name in requests
  bool is_adapter = true;
  bool is_result = false;
  int64_t created_at = 0;  // Unix seconds
};

// "<the result's name>:ckpt-step-<n>".
std::string CheckpointNameOf(const Job& job, int64_t step);
// Whether a name has that form.
bool IsCheckpointName(const std::string& name);

// Sorted by step; empty for a job whose model was deleted.
std::vector<FineTuningCheckpoint> FineTuningCheckpointsOf(const Job& job);

// The checkpoint of that name among all jobs. Never a job's result, which has a different name.
struct FoundFineTuningCheckpoint {
  Job job;
  FineTuningCheckpoint checkpoint;
};
std::optional<FoundFineTuningCheckpoint> FindFineTuningCheckpoint(JobSupervisor& jobs,
                                                                  const std::string& name);

// Deletes its files atomically. Throws kAlreadyExists (in_use) while an unfinished job reads them.
void DeleteFineTuningCheckpoint(JobSupervisor& jobs, const FineTuningCheckpoint& checkpoint);
// Deletes all checkpoints of a job except its result, and unloads those that are served. Throws as
// RefuseCheckpointsInUse.
void DeleteFineTuningCheckpoints(JobSupervisor& jobs, ModelRegistry& models, const Job& job);
// Throws kAlreadyExists (in_use) while an unfinished job reads a checkpoint of this job.
void RefuseCheckpointsInUse(JobSupervisor& jobs, const Job& job);
// Finishes deletions that a crash has interrupted.
void RemoveDeletedCheckpoints(JobSupervisor& jobs);

// OpenAI's checkpoint object, with all required keys.
nlohmann::ordered_json FineTuningCheckpointJson(const Job& job,
                                                const FineTuningCheckpoint& checkpoint,
                                                const FineTuningFigures& figures);

}  // namespace tandem::server
