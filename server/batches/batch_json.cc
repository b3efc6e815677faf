#include "server/batches/batch_json.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/error.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::pair<BatchStatus, const char*>, 8> kNames = {{
    {BatchStatus::kValidating, "validating"},
    {BatchStatus::kFailed, "failed"},
    {BatchStatus::kInProgress, "in_progress"},
    {BatchStatus::kFinalizing, "finalizing"},
    {BatchStatus::kCompleted, "completed"},
    {BatchStatus::kExpired, "expired"},
    {BatchStatus::kCancelling, "cancelling"},
    {BatchStatus::kCancelled, "cancelled"},
}};

const char* NameOf(BatchStatus status) {
  for (const auto& [one, name] : kNames) {
    if (one == status) return name;
  }
  return "";
}

BatchStatus StatusNamed(const std::string& text) {
  for (const auto& [status, name] : kNames) {
    if (text == name) return status;
  }
  throw Error(ErrorCode::kDataLoss, "the database holds a batch of unknown status '" + text + "'");
}

template <class T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

template <class T>
std::optional<T> Optional(const Json& object, const char* name) {
  const Json& value = object.at(name);
  return value.is_null() ? std::nullopt : std::optional<T>(value.get<T>());
}

Json ErrorsJson(const std::vector<BatchError>& errors) {
  if (errors.empty()) return Json();
  Json data = Json::array();
  for (const BatchError& error : errors) {
    data.push_back({{"code", error.code},
                    {"line", OrNull(error.line)},
                    {"message", error.message},
                    {"param", error.param.empty() ? Json() : Json(error.param)}});
  }
  return {{"object", "list"}, {"data", std::move(data)}};
}

Json UsageJson(const BatchUsage& usage) {
  return {{"input_tokens", usage.input_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"output_tokens", usage.output_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.input_tokens + usage.output_tokens}};
}

void ReadTimes(const Json& object, BatchTimes& times) {
  times.created = object.at("created_at").get<int64_t>();
  times.expires = object.at("expires_at").get<int64_t>();
  times.in_progress = Optional<int64_t>(object, "in_progress_at");
  times.finalizing = Optional<int64_t>(object, "finalizing_at");
  times.completed = Optional<int64_t>(object, "completed_at");
  times.failed = Optional<int64_t>(object, "failed_at");
  times.expired = Optional<int64_t>(object, "expired_at");
  times.cancelling = Optional<int64_t>(object, "cancelling_at");
  times.cancelled = Optional<int64_t>(object, "cancelled_at");
}

void ReadFigures(const Json& object, Batch& batch) {
  const Json& counts = object.at("request_counts");
  batch.counts = {counts.at("total").get<int64_t>(), counts.at("completed").get<int64_t>(),
                  counts.at("failed").get<int64_t>()};
  const Json& usage = object.at("usage");
  batch.usage = {usage.at("input_tokens").get<int64_t>(),
                 usage.at("input_tokens_details").at("cached_tokens").get<int64_t>(),
                 usage.at("output_tokens").get<int64_t>(),
                 usage.at("output_tokens_details").at("reasoning_tokens").get<int64_t>()};
}

void ReadErrors(const Json& errors, Batch& batch) {
  if (errors.is_null()) return;
  for (const Json& error : errors.at("data")) {
    batch.errors.push_back({.code = error.at("code").get<std::string>(),
                            .message = error.at("message").get<std::string>(),
                            .param = Optional<std::string>(error, "param").value_or(""),
                            .line = Optional<int64_t>(error, "line")});
  }
}

Batch ReadBatch(const Json& stored) {
  const Json& object = stored.at("batch");
  const Json& rest = stored.at("rest");
  Batch batch;
  batch.id = object.at("id").get<std::string>();
  batch.status = StatusNamed(object.at("status").get<std::string>());
  batch.endpoint = object.at("endpoint").get<std::string>();
  batch.input_file_id = object.at("input_file_id").get<std::string>();
  if (const Json& metadata = object.at("metadata"); !metadata.is_null()) {
    for (const auto& [key, value] : metadata.items()) {
      batch.metadata.emplace_back(key, value.get<std::string>());
    }
  }
  batch.model = Optional<std::string>(object, "model");
  batch.output_file_id = Optional<std::string>(object, "output_file_id");
  batch.error_file_id = Optional<std::string>(object, "error_file_id");
  ReadTimes(object, batch.times);
  ReadFigures(object, batch);
  ReadErrors(object.at("errors"), batch);
  batch.owner = Optional<int64_t>(rest, "owner");
  if (const auto outcome = Optional<std::string>(rest, "outcome")) {
    batch.outcome = StatusNamed(*outcome);
  }
  batch.output_expires_after_s = Optional<int64_t>(rest, "output_expires_after_s");
  batch.planned_output_id = rest.at("planned_output_id").get<std::string>();
  batch.planned_error_id = rest.at("planned_error_id").get<std::string>();
  return batch;
}

}  // namespace

Json BatchJson(const Batch& batch) {
  Json out;
  out["id"] = batch.id;
  out["object"] = "batch";
  out["endpoint"] = batch.endpoint;
  out["model"] = OrNull(batch.model);
  out["errors"] = ErrorsJson(batch.errors);
  out["input_file_id"] = batch.input_file_id;
  out["completion_window"] = "24h";
  out["status"] = NameOf(batch.status);
  out["output_file_id"] = OrNull(batch.output_file_id);
  out["error_file_id"] = OrNull(batch.error_file_id);
  out["created_at"] = batch.times.created;
  out["in_progress_at"] = OrNull(batch.times.in_progress);
  out["expires_at"] = batch.times.expires;
  out["finalizing_at"] = OrNull(batch.times.finalizing);
  out["completed_at"] = OrNull(batch.times.completed);
  out["failed_at"] = OrNull(batch.times.failed);
  out["expired_at"] = OrNull(batch.times.expired);
  out["cancelling_at"] = OrNull(batch.times.cancelling);
  out["cancelled_at"] = OrNull(batch.times.cancelled);
  out["request_counts"] = {{"total", batch.counts.total},
                           {"completed", batch.counts.completed},
                           {"failed", batch.counts.failed}};
  out["usage"] = UsageJson(batch.usage);
  Json metadata;
  for (const auto& [key, value] : batch.metadata) metadata[key] = value;
  out["metadata"] = std::move(metadata);
  return out;
}

std::string StoredBatch(const Batch& batch) {
  Json rest;
  rest["owner"] = OrNull(batch.owner);
  rest["outcome"] = batch.outcome ? Json(NameOf(*batch.outcome)) : Json();
  rest["output_expires_after_s"] = OrNull(batch.output_expires_after_s);
  rest["planned_output_id"] = batch.planned_output_id;
  rest["planned_error_id"] = batch.planned_error_id;
  return Json{{"batch", BatchJson(batch)}, {"rest", std::move(rest)}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
}

Batch ParseBatch(std::string_view stored) {
  std::optional<Batch> batch;
  const auto error =
      ExceptionOf<nlohmann::json::exception>([&] { batch = ReadBatch(Json::parse(stored)); });
  if (error) {
    throw Error(ErrorCode::kDataLoss,
                std::string("the database holds a damaged batch: ") + error->what());
  }
  return std::move(*batch);
}

}  // namespace tandem::server
