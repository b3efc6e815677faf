#include "server/fine_tuning/fine_tuning_events.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "server/fine_tuning/fine_tuning_checkpoints.h"
#include "server/fine_tuning/fine_tuning_object.h"
#include "server/jobs/job_files.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kPieceBytes = 256 << 10;
constexpr int64_t kMostMetricsEvents = 1000;

std::optional<double> NumberAt(const Json& row, const char* name) {
  const auto found = row.find(name);
  if (found == row.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

int64_t IntAt(const Json& row, const char* name) {
  const auto found = row.find(name);
  return found != row.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

// The child's output is untrusted: returns null unless the text is a JSON object of bounded depth.
Json ParseRow(const std::string& text) {
  if (!IsBoundedJsonObject(text)) return Json();
  return Json::parse(text, nullptr, false);
}

// The data of a metrics event; null if the row has no loss.
Json MetricsOf(const Json& row, int64_t total_steps) {
  Json data;
  if (const auto loss = NumberAt(row, "learning/loss")) {
    data["step"] = IntAt(row, "step") + 1;
    data["total_steps"] = total_steps;
    data["train_loss"] = *loss;
    data["train_mean_token_accuracy"] = OrNull(NumberAt(row, "learning/accuracy"));
    data["learning_rate"] = OrNull(NumberAt(row, "learning/current_learning_rate"));
    data["tokens_per_second"] = OrNull(NumberAt(row, "perf/real_tokens_per_sec"));
  } else if (const auto valid_loss = NumberAt(row, "eval/avg_loss")) {
    data["step"] = IntAt(row, "step");
    data["total_steps"] = total_steps;
    data["valid_loss"] = *valid_loss;
    data["valid_mean_token_accuracy"] = OrNull(NumberAt(row, "eval/accuracy"));
  }
  return data;
}

// Paths below the job's directory, relative to it: clients need not know where the server works.
std::string WithoutDirectory(std::string text, const std::filesystem::path& dir) {
  const std::string prefix = dir.string() + "/";
  for (size_t at = 0; (at = text.find(prefix, at)) != std::string::npos;) {
    text.erase(at, prefix.size());
  }
  return text;
}

std::filesystem::path MetricsFile(const Job& job) { return job.dir / "metrics.jsonl"; }

}  // namespace

FineTuningEvents::FineTuningEvents(const Job& job, int64_t steps) : job_(job), steps_(steps) {}

Json FineTuningEvents::Event(const char* kind, int64_t number, int64_t created_at) const {
  Json event;
  event["object"] = "fine_tuning.job.event";
  event["id"] = "ftevent-" + ShortIdOf(job_) + "-" + kind + std::to_string(number);
  event["created_at"] = created_at;
  event["level"] = "info";
  event["message"] = "";
  event["type"] = "message";
  event["data"] = Json::object();
  return event;
}

bool FineTuningEvents::ReadMore(bool is_over, std::vector<Json>* events) {
  std::vector<Json> read;
  if (!has_begun_) {
    has_begun_ = true;
    read.push_back(Event("c", 0, job_.created_at));
    read.back()["message"] = "Created fine-tuning job: " + job_.id;
  }
  const bool more_messages = ReadMessages(is_over, &read);
  const bool more_metrics = ReadMetrics(is_over, &read);
  std::stable_sort(read.begin(), read.end(), [](const Json& a, const Json& b) {
    return a["created_at"].get<int64_t>() < b["created_at"].get<int64_t>();
  });
  for (Json& event : read) events->push_back(std::move(event));
  return more_messages || more_metrics;
}

bool FineTuningEvents::ReadMessages(bool is_over, std::vector<Json>* events) {
  const LogChunk chunk =
      ReadLogLines(job_.dir / "events.jsonl", messages_offset_, kPieceBytes, is_over);
  for (const LogLine& line : chunk.lines) {
    const Json row = ParseRow(line.text);
    if (!row.is_object() || !row.contains("kind") || !row["kind"].is_string()) continue;
    const std::string kind = row["kind"];
    if (kind == "step") continue;  // metrics.jsonl has the steps
    Json event = Event("m", line.offset, IntAt(row, "unix_ms") / 1000);
    if (kind == "warning") event["level"] = "warn";
    if (row.contains("message") && row["message"].is_string()) {
      event["message"] = WithoutDirectory(row["message"], job_.dir);
    }
    // Replace messages that name a path on the server.
    const int64_t step = IntAt(row, "step");
    if (kind == "sample") {
      event["data"] = Json{{"step", step}, {"sample", event["message"]}};
      event["message"] = "Sample after step " + std::to_string(step);
    } else if (kind == "checkpoint") {
      event["message"] = "Checkpoint written after step " + std::to_string(step);
    } else if (kind == "export") {
      event["message"] = "Checkpoint created at step " + std::to_string(step) + ": " +
                         CheckpointNameOf(job_, step);
    }
    events->push_back(std::move(event));
  }
  messages_offset_ = chunk.next_offset;
  return !chunk.at_end;
}

bool FineTuningEvents::IsTold(int64_t step) const {
  const int64_t every =
      std::max<int64_t>(1, (steps_ + kMostMetricsEvents - 1) / kMostMetricsEvents);
  return step == 1 || step % every == 0;
}

Json FineTuningEvents::MetricsEvent(const Json& row, Json data, int64_t offset) const {
  Json event = Event("s", offset, static_cast<int64_t>(NumberAt(row, "unix_seconds").value_or(0)));
  event["type"] = "metrics";
  event["message"] = "Step " + data["step"].dump() + "/" + std::to_string(steps_) + ": " +
                     (data.contains("train_loss") ? "training loss=" + data["train_loss"].dump()
                                                  : "validation loss=" + data["valid_loss"].dump());
  event["data"] = std::move(data);
  return event;
}

bool FineTuningEvents::ReadMetrics(bool is_over, std::vector<Json>* events) {
  const LogChunk chunk = ReadLogLines(MetricsFile(job_), metrics_offset_, kPieceBytes, is_over);
  for (const LogLine& line : chunk.lines) {
    const Json row = ParseRow(line.text);
    if (!row.is_object()) continue;
    Json data = MetricsOf(row, steps_);
    if (data.is_null()) continue;
    const int64_t step = data["step"];
    const bool is_step = data.contains("train_loss");
    int64_t& last = is_step ? last_step_ : last_evaluation_;
    // A resumed run repeats some steps with the same figures.
    if (step <= last) continue;
    last = step;
    Json event = MetricsEvent(row, std::move(data), line.offset);
    if (is_step) untold_.clear();
    if (!is_step || IsTold(step)) {
      events->push_back(std::move(event));
    } else {
      untold_.push_back(std::move(event));
    }
  }
  metrics_offset_ = chunk.next_offset;
  return !chunk.at_end;
}

std::vector<Json> FineTuningEvents::End(const Job& job) {
  std::vector<Json> events;
  if (!IsFinished(job.status)) return events;
  events.swap(untold_);
  Json event = Event("f", 0, job.finished_at.value_or(job.created_at));
  if (job.status == JobStatus::kSucceeded) {
    event["message"] = "New fine-tuned model created: " + FineTunedNameOf(job);
    events.push_back(event);
    event = Event("f", 1, job.finished_at.value_or(job.created_at));
    event["message"] = "The job has successfully completed";
  } else if (job.status == JobStatus::kCancelled) {
    event["message"] = "The job was cancelled";
  } else {
    event["level"] = "error";
    event["message"] = job.error ? FineTuningErrorOf(job).message : "The job has failed";
  }
  events.push_back(std::move(event));
  return events;
}

FineTuningFigures ReadFineTuningFigures(const Job& job, int64_t steps) {
  // Keeps the last row of each step: an interrupted run has written some twice.
  std::map<std::pair<int64_t, bool>, std::pair<Json, int64_t>> last;
  int64_t offset = 0;
  for (bool at_end = false; !at_end;) {
    const LogChunk chunk = ReadLogLines(MetricsFile(job), offset, kPieceBytes, true);
    for (const LogLine& line : chunk.lines) {
      const Json row = ParseRow(line.text);
      if (!row.is_object()) continue;
      Json data = MetricsOf(row, steps);
      if (data.is_null()) continue;
      const std::pair key(data["step"].get<int64_t>(), !data.contains("train_loss"));
      last[key] = {std::move(data), IntAt(row, "learning/total_weights")};
    }
    at_end = chunk.at_end || chunk.next_offset == offset;
    offset = chunk.next_offset;
  }
  FineTuningFigures figures;
  for (auto& [key, entry] : last) {
    figures.trained_tokens += entry.second;
    if (!key.second) figures.last_step = key.first;
    figures.rows.push_back(std::move(entry.first));
  }
  return figures;
}

}  // namespace tandem::server
