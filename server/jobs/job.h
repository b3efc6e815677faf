#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::server {

// A job as the admin API shows it: plain values, free to copy, any thread.

enum class JobType {
  kTrain,
  kConvert,
  kPipeline,
  kModelLoad,
  kModelUnload,
  kAdapterLoad,
  kFineTune
};
enum class JobStatus { kQueued, kRunning, kPaused, kSucceeded, kFailed, kCancelled };

// Names as in the API ("model_load"), and back; nullopt for an unknown name.
std::string_view NameOf(JobType type);
std::string_view NameOf(JobStatus status);
std::optional<JobType> ParseJobType(std::string_view name);
std::optional<JobStatus> ParseJobStatus(std::string_view name);

// The program's verb whose process does this work; empty: the server does it.
std::string_view VerbFor(JobType type);

// Succeeded, failed or cancelled: the job does not change any more.
bool IsFinished(JobStatus status);

struct JobError {
  std::string message;
  std::string code;  // "bad_data", "crashed", …; never empty
};

struct Job {
  std::string id;  // "job-" and 24 hexadecimal digits
  JobType type = JobType::kTrain;
  JobStatus status = JobStatus::kQueued;
  int64_t created_at = 0;             // seconds since 1970
  std::optional<int64_t> started_at;  // the first start; a resume does not change it
  std::optional<int64_t> finished_at;
  double progress = 0;  // [0, 1]
  std::optional<JobError> error;
  std::string request_json;  // the spec as submitted: a JSON object
  std::optional<std::string> result_json;
  std::filesystem::path dir;
  std::optional<int64_t> owner;   // client number of the key that made it; nullopt: nobody's
  bool is_model_deleted = false;  // by any replica; only where each has a data directory of its own
};

// The Job object of the admin API, as compact JSON text.
std::string AdminJobJson(const Job& job);

}  // namespace tandem::server
