#include "server/fine_tuning/fine_tuning_object.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <utility>

#include "server/jobs/job_files.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kResultFile = "fine_tuning.json";
constexpr size_t kNameDigits = 6;

Json RequestOf(const Job& job) { return Json::parse(job.request_json, nullptr, false); }

std::string TextAt(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

Json ErrorJson(const Job& job) {
  if (!job.error) return Json();
  const FineTuningError shown = FineTuningErrorOf(job);
  Json error;
  error["code"] = shown.code;
  error["message"] = shown.message;
  error["param"] = shown.param.empty() ? Json() : Json(shown.param);
  return error;
}

// Data paths in a job's spec; empty if absent.
struct DataPaths {
  std::string train;
  std::string eval;
};
DataPaths DataPathsOf(const Job& job) {
  DataPaths paths;
  const std::ifstream file(job.dir / "spec.json");
  std::ostringstream text;
  text << file.rdbuf();
  const Json spec = Json::parse(text.str(), nullptr, false);
  if (!spec.is_object() || !spec.contains("data") || !spec["data"].is_object()) return paths;
  paths.train = TextAt(spec["data"], "train");
  paths.eval = TextAt(spec["data"], "eval");
  return paths;
}

// Extracts the rows of a report of bad rows (DataReport::BadRows): "line 7: why; line 9: …". Empty
// for any other message.
std::string BadLinesIn(const std::string& message) {
  constexpr size_t kMostListed = 10;
  constexpr std::string_view kMore = "  and ";
  std::istringstream lines(message);
  std::string text;
  int64_t listed = 0;
  int64_t more = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kMore) && line.ends_with(" more")) {
      more += std::strtoll(line.c_str() + kMore.size(), nullptr, 10);
    } else if (line.starts_with("  ") && static_cast<size_t>(++listed) <= kMostListed) {
      text += (text.empty() ? "" : "; ") + line.substr(2);
    }
  }
  more += std::max<int64_t>(0, listed - static_cast<int64_t>(kMostListed));
  return text + (more > 0 ? "; and " + std::to_string(more) + " more" : "");
}

// A large file is checked by the job's process, which writes its first event after the check.
bool IsBeingValidated(const Job& job, const Json& request) {
  const bool is_waiting = job.status == JobStatus::kQueued || job.status == JobStatus::kRunning;
  return is_waiting && request.value("unchecked", false) &&
         FileBytes(job.dir / "events.jsonl") == 0;
}

// Unix seconds, extrapolated from the progress so far; null before any.
Json EstimatedFinish(const Job& job, int64_t now) {
  if (job.status != JobStatus::kRunning || !job.started_at || job.progress <= 0) return Json();
  const double elapsed = static_cast<double>(std::max<int64_t>(0, now - *job.started_at));
  return now + static_cast<int64_t>(elapsed / job.progress * (1 - job.progress));
}

}  // namespace

std::string ShortIdOf(const Job& job) { return job.id.substr(job.id.find('-') + 1); }

std::string FineTunedNameOf(const Job& job) {
  const Json request = RequestOf(job);
  const std::string id = ShortIdOf(job);
  return "ft:" + TextAt(request, "base") + ":local:" + TextAt(request, "suffix") + ":" +
         id.substr(id.size() - std::min(kNameDigits, id.size()));
}

std::string FineTunedBaseOf(const Job& job) { return TextAt(RequestOf(job), "base"); }

int64_t FineTuningStepsOf(const Job& job) { return RequestOf(job).value("steps", int64_t{0}); }

std::vector<std::string> FineTuningFilesOf(const Job& job) {
  const Json request = RequestOf(job);
  std::vector<std::string> files;
  for (const char* name : {"training_file", "validation_file"}) {
    if (std::string id = TextAt(request, name); !id.empty()) files.push_back(std::move(id));
  }
  return files;
}

Json FineTuningResult::ToJson() const {
  return {{"result_files", result_files}, {"trained_tokens", trained_tokens}, {"steps", steps}};
}

void WriteFineTuningResult(const Job& job, const FineTuningResult& result) {
  WriteJobFile(job.dir / kResultFile, result.ToJson().dump());
}

std::optional<FineTuningResult> ReadFineTuningResult(const Job& job) {
  const std::ifstream file(job.dir / kResultFile);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  const nlohmann::ordered_json object = nlohmann::ordered_json::parse(text.str(), nullptr, false);
  if (!object.is_object()) return std::nullopt;
  FineTuningResult result;
  result.result_files = object.value("result_files", std::vector<std::string>());
  result.trained_tokens = object.value("trained_tokens", int64_t{0});
  result.steps = object.value("steps", int64_t{0});
  return result;
}

std::string WithoutPath(std::string text, const std::string& path) {
  for (size_t at = 0; !path.empty() && (at = text.find(path, at)) != std::string::npos;) {
    text.replace(at, path.size(), "the file");
  }
  return text;
}

FineTuningError FineTuningErrorOf(const Job& job) {
  if (job.error->code != "bad_data") return {job.error->code, job.error->message, ""};
  const DataPaths paths = DataPathsOf(job);
  const std::string& message = job.error->message;
  const bool is_eval = !paths.eval.empty() && message.find(paths.eval) != std::string::npos;
  std::string shown = BadLinesIn(message);
  if (shown.empty()) shown = WithoutPath(WithoutPath(message, paths.train), paths.eval);
  return {"invalid_training_file", std::move(shown), is_eval ? "validation_file" : "training_file"};
}

nlohmann::ordered_json FineTuningJobJson(const Job& job, int64_t now) {
  const Json request = RequestOf(job);
  const bool has_succeeded = job.status == JobStatus::kSucceeded;
  const std::optional<FineTuningResult> result =
      has_succeeded ? ReadFineTuningResult(job) : std::nullopt;
  const auto part = [&](const char* name) {
    return request.contains(name) ? request[name] : Json();
  };
  Json out;
  out["id"] = job.id;
  out["object"] = "fine_tuning.job";
  out["created_at"] = job.created_at;
  out["finished_at"] = job.finished_at ? Json(*job.finished_at) : Json();
  out["model"] = part("model");
  out["fine_tuned_model"] = has_succeeded ? Json(FineTunedNameOf(job)) : Json();
  out["organization_id"] = "org-local";
  out["status"] =
      IsBeingValidated(job, request) ? "validating_files" : std::string(NameOf(job.status));
  out["hyperparameters"] = part("hyperparameters");
  const std::string method = TextAt(request, "method");
  out["method"]["type"] = method;
  out["method"][method]["hyperparameters"] = part("hyperparameters");
  out["training_file"] = part("training_file");
  out["validation_file"] = part("validation_file");
  out["result_files"] = result ? Json(result->result_files) : Json::array();
  out["trained_tokens"] = result ? Json(result->trained_tokens) : Json();
  out["error"] = ErrorJson(job);
  out["seed"] = part("seed");
  out["estimated_finish"] = EstimatedFinish(job, now);
  out["integrations"] = Json::array();
  out["metadata"] = part("metadata");
  return out;
}

}  // namespace tandem::server
