#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/fine_tuning/fine_tuning_checkpoints.h"
#include "server/fine_tuning/fine_tuning_events.h"
#include "server/fine_tuning/fine_tuning_object.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"
#include "server/handlers/job_follower.h"
#include "server/handlers/query_fields.h"
#include "server/jobs/job_supervisor.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

std::string Text(const Json& event) {
  return event.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Job FindFollowedJob(const HandlerContext& context, const Request& request) {
  return RequireFineTuningJob(context, request);
}

// The page of `all` after the element whose id is the query's `after`; empty if that is unknown.
Json Page(const std::vector<Json>& all, const Request& request, size_t limit) {
  auto at = all.begin();
  if (const std::string* after = request.FindQuery("after")) {
    at = std::find_if(all.begin(), all.end(), [&](const Json& one) { return one["id"] == *after; });
    if (at != all.end()) ++at;
  }
  const auto left = static_cast<size_t>(all.end() - at);
  const auto end = at + static_cast<std::ptrdiff_t>(std::min(limit, left));
  Json body;
  body["object"] = "list";
  body["data"] = std::vector<Json>(at, end);
  body["first_id"] = at == end ? Json() : (*at)["id"];
  body["last_id"] = at == end ? Json() : (*(end - 1))["id"];
  body["has_more"] = left > limit;
  return body;
}

// Streams the events of a job until it ends.
class EventFollower final : public JobFollower {
 public:
  EventFollower(const HandlerContext& context, const Job& job, ResponseWriter writer)
      : JobFollower(context, job.id, std::move(writer)), events_(job, FineTuningStepsOf(job)) {}

 private:
  Next Send(EventStream& stream) override {
    JobSupervisor* jobs = context().jobs;
    // Look up the job before reading its files: the files of an ended job are complete.
    const std::optional<Job> job = jobs == nullptr ? std::nullopt : jobs->Find(job_id());
    std::vector<Json> read;
    const bool is_over = job && IsFinished(job->status);
    const bool has_more = events_.ReadMore(is_over, &read);
    for (const Json& event : read) stream.Send(Text(event));
    if (has_more) return Next::kGoOn;
    if (job && !is_over && !context().is_draining) return Next::kWait;
    if (job) {
      for (const Json& event : events_.End(*job)) stream.Send(Text(event));
    }
    stream.Send("[DONE]");
    return Next::kEnd;
  }

  FineTuningEvents events_;
};

// GET /v1/fine_tuning/jobs/{id}/events
void ListFineTuningEvents(const HandlerContext& context, Request request, ResponseWriter writer) {
  const Job job = FindFollowedJob(context, request);
  const std::string* stream = request.FindQuery("stream");
  if (stream != nullptr && (*stream == "true" || *stream == "1")) {
    std::make_shared<EventFollower>(context, job, std::move(writer))->Start();
    return;
  }
  const auto limit = static_cast<size_t>(QueryInt(request, "limit", 20, 1, 1000));
  FineTuningEvents reader(job, FineTuningStepsOf(job));
  std::vector<Json> events;
  while (reader.ReadMore(IsFinished(job.status), &events)) {
  }
  std::stable_sort(events.begin(), events.end(), [](const Json& a, const Json& b) {
    return a["created_at"].get<int64_t>() < b["created_at"].get<int64_t>();
  });
  for (Json& event : reader.End(job)) events.push_back(std::move(event));
  std::reverse(events.begin(), events.end());
  writer.Json(200, Text(Page(events, request, limit)));
}

// GET /v1/fine_tuning/jobs/{id}/checkpoints
void ListFineTuningCheckpoints(const HandlerContext& context, Request request,
                               ResponseWriter writer) {
  const Job job = FindFollowedJob(context, request);
  const auto limit = static_cast<size_t>(QueryInt(request, "limit", 10, 1, 100));
  std::vector<Json> checkpoints;
  const std::vector<FineTuningCheckpoint> found = FineTuningCheckpointsOf(job);
  const FineTuningFigures figures =
      found.empty() ? FineTuningFigures() : ReadFineTuningFigures(job, FineTuningStepsOf(job));
  for (auto checkpoint = found.rbegin(); checkpoint != found.rend(); ++checkpoint) {
    checkpoints.push_back(FineTuningCheckpointJson(job, *checkpoint, figures));
  }
  writer.Json(200, Text(Page(checkpoints, request, limit)));
}

}  // namespace

std::span<const Endpoint> FineTuningFollowEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"GET", "/v1/fine_tuning/jobs/{id}/events", ListFineTuningEvents, Access::kTrainKey},
      {"GET", "/v1/fine_tuning/jobs/{id}/checkpoints", ListFineTuningCheckpoints,
       Access::kTrainKey},
  };
  return kEndpoints;
}

}  // namespace tandem::server
