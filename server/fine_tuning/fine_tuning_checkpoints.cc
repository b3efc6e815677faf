#include "server/fine_tuning/fine_tuning_checkpoints.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <system_error>

#include "engine/base/error.h"
#include "server/fine_tuning/fine_tuning_object.h"
#include "server/jobs/job_files.h"
#include "server/jobs/job_supervisor.h"
#include "server/models/model_registry.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kNamePart = ":ckpt-step-";
constexpr std::string_view kFolderPart = "step-";
constexpr const char* kDeletedPrefix = ".deleted-";

fs::path ExportsOf(const Job& job) { return job.dir / "exports"; }

// Parses "12" as step 12; returns 0 for anything else.
int64_t StepIn(std::string_view text) {
  int64_t step = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), step);
  const bool is_step =
      failed == std::errc() && end == text.data() + text.size() && step > 0 && text.front() != '0';
  return is_step ? step : 0;
}

// Modification time of a file of the checkpoint. The directory's own time changes when records are
// added later.
int64_t UnixSecondsOf(const fs::path& file) {
  std::error_code failed;
  const auto written = fs::last_write_time(file, failed);
  if (failed) return 0;
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::file_clock::to_sys(written).time_since_epoch())
      .count();
}

// Visits the fine-tuning jobs, newest first, until `is_enough` returns true.
void ForEachJob(JobSupervisor& jobs, const std::function<bool(const Job&)>& is_enough) {
  JobFilter filter;
  filter.type = JobType::kFineTune;
  filter.limit = 100;
  for (;;) {
    const JobPage page = jobs.List(filter);
    for (const Job& job : page.jobs) {
      if (is_enough(job)) return;
    }
    if (!page.has_more || page.jobs.empty()) return;
    filter.after = page.jobs.back().id;
  }
}

// The id of an unfinished job whose spec names `dir` or a path below it.
std::optional<std::string> ReaderOf(JobSupervisor& jobs, const fs::path& dir) {
  for (const JobStatus status : {JobStatus::kQueued, JobStatus::kRunning, JobStatus::kPaused}) {
    JobFilter filter;
    filter.status = status;
    filter.limit = 1000;
    for (const Job& job : jobs.List(filter).jobs) {
      const std::ifstream spec(job.dir / "spec.json");
      std::ostringstream read;
      read << spec.rdbuf();
      const std::string text = read.str();
      // The path as JSON escapes it, without the quotes.
      std::string named = Json(dir.string()).dump();
      named = named.substr(1, named.size() - 2);
      for (const char* end : {"/", "\""}) {
        if (text.find(named + end) != std::string::npos) return job.id;
      }
    }
  }
  return std::nullopt;
}

void RefuseInUse(JobSupervisor& jobs, const fs::path& dir, const std::string& what) {
  if (const std::optional<std::string> reader = ReaderOf(jobs, dir)) {
    throw Error(ErrorCode::kAlreadyExists, what + " is the starting point of unfinished job " +
                                               *reader + ": wait for the job or cancel it")
        .WithParam("model")
        .WithReason("in_use");
  }
}

// Deletes a directory atomically: renames it, then removes the renamed one.
void RemoveWhole(const fs::path& dir) {
  const fs::path doomed = dir.parent_path() / (kDeletedPrefix + dir.filename().string());
  std::error_code failed;
  fs::remove_all(doomed, failed);
  fs::rename(dir, doomed, failed);
  if (failed && failed != std::errc::no_such_file_or_directory) {
    ThrowIo("delete", dir, failed.value());
  }
  fs::remove_all(doomed, failed);
}

}  // namespace

std::string CheckpointNameOf(const Job& job, int64_t step) {
  return FineTunedNameOf(job) + std::string(kNamePart) + std::to_string(step);
}

bool IsCheckpointName(const std::string& name) {
  const size_t at = name.rfind(kNamePart);
  return at != std::string::npos &&
         StepIn(std::string_view(name).substr(at + kNamePart.size())) > 0;
}

std::vector<FineTuningCheckpoint> FineTuningCheckpointsOf(const Job& job) {
  std::vector<FineTuningCheckpoint> found;
  if (job.is_model_deleted || fs::exists(job.dir / kModelDeletedFile)) return found;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(ExportsOf(job), failed)) {
    const std::string name = entry.path().filename().string();
    const int64_t step = name.starts_with(kFolderPart)
                             ? StepIn(std::string_view(name).substr(kFolderPart.size()))
                             : 0;
    if (step == 0 || entry.is_symlink() || !entry.is_directory()) continue;
    const fs::path adapter = entry.path() / "adapter_config.json";
    const bool is_adapter = fs::exists(adapter);
    found.push_back(
        {.step = step,
         .dir = entry.path(),
         .model = CheckpointNameOf(job, step),
         .is_adapter = is_adapter,
         .created_at = UnixSecondsOf(is_adapter ? adapter : entry.path() / "config.json")});
  }
  if (job.status == JobStatus::kSucceeded) {
    const std::optional<FineTuningResult> result = ReadFineTuningResult(job);
    FineTuningCheckpoint last;
    last.step = result ? result->steps : FineTuningStepsOf(job);
    last.model = FineTunedNameOf(job);
    last.is_result = true;
    last.created_at = job.finished_at.value_or(job.created_at);
    // A run that ended early exported its last step; the result replaces that export.
    std::erase_if(found, [&](const auto& one) { return one.step == last.step; });
    found.push_back(std::move(last));
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

std::optional<FoundFineTuningCheckpoint> FindFineTuningCheckpoint(JobSupervisor& jobs,
                                                                  const std::string& name) {
  std::optional<FoundFineTuningCheckpoint> found;
  if (!IsCheckpointName(name)) return found;
  const std::string result = name.substr(0, name.rfind(kNamePart));
  ForEachJob(jobs, [&](const Job& job) {
    if (FineTunedNameOf(job) != result) return false;
    for (FineTuningCheckpoint& one : FineTuningCheckpointsOf(job)) {
      if (one.model == name) found = FoundFineTuningCheckpoint{job, std::move(one)};
    }
    return found.has_value();
  });
  return found;
}

void DeleteFineTuningCheckpoint(JobSupervisor& jobs, const FineTuningCheckpoint& checkpoint) {
  RefuseInUse(jobs, checkpoint.dir, "'" + checkpoint.model + "'");
  RemoveWhole(checkpoint.dir);
}

void RefuseCheckpointsInUse(JobSupervisor& jobs, const Job& job) {
  RefuseInUse(jobs, ExportsOf(job), "a checkpoint of '" + FineTunedNameOf(job) + "'");
}

void DeleteFineTuningCheckpoints(JobSupervisor& jobs, ModelRegistry& models, const Job& job) {
  RefuseCheckpointsInUse(jobs, job);
  RemoveWhole(ExportsOf(job));
  const std::string prefix = FineTunedNameOf(job) + std::string(kNamePart);
  for (const ModelRegistry::Entry& entry : models.List()) {
    if (entry.name == entry.model->id && entry.name.starts_with(prefix)) {
      models.Remove(*entry.model, nullptr, "it was deleted");
    }
  }
}

void RemoveDeletedCheckpoints(JobSupervisor& jobs) {
  ForEachJob(jobs, [](const Job& job) {
    std::error_code ignored;
    if (fs::exists(job.dir / kModelDeletedFile)) fs::remove_all(ExportsOf(job), ignored);
    for (const fs::path& dir : {job.dir, ExportsOf(job)}) {
      for (const auto& entry : fs::directory_iterator(dir, ignored)) {
        if (!entry.path().filename().string().starts_with(kDeletedPrefix)) continue;
        fs::remove_all(entry.path(), ignored);
      }
    }
    return false;
  });
}

Json FineTuningCheckpointJson(const Job& job, const FineTuningCheckpoint& checkpoint,
                              const FineTuningFigures& figures) {
  Json metrics;
  metrics["step"] = checkpoint.step;
  const auto copy = [&](const Json& row, const char* name, const char* as) {
    if (const auto value = row.find(name); value != row.end() && value->is_number()) {
      metrics[as] = *value;
    }
  };
  for (const Json& row : figures.rows) {
    if (row["step"] != checkpoint.step) continue;
    copy(row, "train_loss", "train_loss");
    copy(row, "train_mean_token_accuracy", "train_mean_token_accuracy");
    copy(row, "valid_loss", "valid_loss");
    copy(row, "valid_mean_token_accuracy", "valid_mean_token_accuracy");
    // Evaluations always cover the whole file.
    copy(row, "valid_loss", "full_valid_loss");
    copy(row, "valid_mean_token_accuracy", "full_valid_mean_token_accuracy");
  }
  Json out;
  out["id"] = "ftckpt-" + ShortIdOf(job) + "-" + std::to_string(checkpoint.step);
  out["object"] = "fine_tuning.job.checkpoint";
  out["created_at"] = checkpoint.created_at;
  out["fine_tuned_model_checkpoint"] = checkpoint.model;
  out["step_number"] = checkpoint.step;
  out["fine_tuning_job_id"] = job.id;
  out["metrics"] = std::move(metrics);
  return out;
}

}  // namespace tandem::server
