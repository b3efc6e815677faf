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

// The checkpoints of a fine-tuning job that answer requests. Nobody keeps a record of them: each is
// a directory exports/step-N of the job's, which its process has put there by renaming it, or the
// result, and its name says whose it is. So there is nothing that a crash could part.

struct FineTuningCheckpoint {
  int64_t step = 0;  // from 1
  std::filesystem::path dir;
  std::string model;  // the name that it answers to
  bool is_adapter = true;
  bool is_result = false;
  int64_t created_at = 0;
};

// "<the result's name>:ckpt-step-<n>".
std::string CheckpointNameOf(const Job& job, int64_t step);
// Whether a name has that form.
bool IsCheckpointName(const std::string& name);

// In order of steps; none of a job whose model has been deleted.
std::vector<FineTuningCheckpoint> FineTuningCheckpointsOf(const Job& job);

// The checkpoint of this name, of whichever job, but for the results themselves.
struct FoundFineTuningCheckpoint {
  Job job;
  FineTuningCheckpoint checkpoint;
};
std::optional<FoundFineTuningCheckpoint> FindFineTuningCheckpoint(JobSupervisor& jobs,
                                                                  const std::string& name);

// Takes its files away, whole or not at all. Throws kAlreadyExists (in_use) while an unfinished job
// reads them.
void DeleteFineTuningCheckpoint(JobSupervisor& jobs, const FineTuningCheckpoint& checkpoint);
// The same of all of a job's that are not the result, and of what answered of them.
void DeleteFineTuningCheckpoints(JobSupervisor& jobs, ModelRegistry& models, const Job& job);
// Throws kAlreadyExists (in_use) while an unfinished job reads a checkpoint of this one.
void RefuseCheckpointsInUse(JobSupervisor& jobs, const Job& job);
// What a deletion that was cut short has left.
void RemoveDeletedCheckpoints(JobSupervisor& jobs);

// The official checkpoint object, with every key that it requires.
nlohmann::ordered_json FineTuningCheckpointJson(const Job& job,
                                                const FineTuningCheckpoint& checkpoint,
                                                const FineTuningFigures& figures);

}  // namespace tandem::server
