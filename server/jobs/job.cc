#include "server/jobs/job.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

namespace tandem::server {
namespace {

constexpr std::array<std::pair<JobType, std::string_view>, 7> kTypes = {{
    {JobType::kTrain, "train"},
    {JobType::kConvert, "convert"},
    {JobType::kPipeline, "pipeline"},
    {JobType::kModelLoad, "model_load"},
    {JobType::kModelUnload, "model_unload"},
    {JobType::kAdapterLoad, "adapter_load"},
    {JobType::kFineTune, "fine_tune"},
}};

constexpr std::array<std::pair<JobStatus, std::string_view>, 6> kStatuses = {{
    {JobStatus::kQueued, "queued"},
    {JobStatus::kRunning, "running"},
    {JobStatus::kPaused, "paused"},
    {JobStatus::kSucceeded, "succeeded"},
    {JobStatus::kFailed, "failed"},
    {JobStatus::kCancelled, "cancelled"},
}};

template <class Table, class Value>
std::string_view Name(const Table& table, Value value) {
  for (const auto& [entry, name] : table) {
    if (entry == value) return name;
  }
  return "unknown";
}

template <class Value, class Table>
std::optional<Value> Parse(const Table& table, std::string_view name) {
  for (const auto& [entry, entry_name] : table) {
    if (entry_name == name) return entry;
  }
  return std::nullopt;
}

using nlohmann::ordered_json;

ordered_json TimeOrNull(const std::optional<int64_t>& time) {
  return time ? ordered_json(*time) : ordered_json(nullptr);
}

}  // namespace

std::string_view NameOf(JobType type) { return Name(kTypes, type); }
std::string_view NameOf(JobStatus status) { return Name(kStatuses, status); }
std::optional<JobType> ParseJobType(std::string_view name) { return Parse<JobType>(kTypes, name); }
std::optional<JobStatus> ParseJobStatus(std::string_view name) {
  return Parse<JobStatus>(kStatuses, name);
}

std::string_view VerbFor(JobType type) {
  switch (type) {
    case JobType::kTrain:
    case JobType::kFineTune:
      return "train";
    case JobType::kConvert:
      return "convert";
    case JobType::kPipeline:
      return "pipeline";
    default:
      return "";
  }
}

bool IsFinished(JobStatus status) {
  return status == JobStatus::kSucceeded || status == JobStatus::kFailed ||
         status == JobStatus::kCancelled;
}

std::string AdminJobJson(const Job& job) {
  ordered_json out;
  out["id"] = job.id;
  out["object"] = "admin.job";
  out["type"] = NameOf(job.type);
  out["status"] = NameOf(job.status);
  out["created_at"] = job.created_at;
  out["started_at"] = TimeOrNull(job.started_at);
  out["finished_at"] = TimeOrNull(job.finished_at);
  out["progress"] = job.progress;
  out["error"] = nullptr;
  if (job.error) {
    out["error"] = ordered_json{{"message", job.error->message}, {"code", job.error->code}};
  }
  out["request"] = ordered_json::parse(job.request_json);
  out["result"] = job.result_json ? ordered_json::parse(*job.result_json) : ordered_json(nullptr);
  return out.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace tandem::server
