#include <algorithm>
#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/handlers/fine_tuning_events.h"
#include "server/handlers/fine_tuning_object.h"
#include "server/handlers/handlers.h"
#include "server/handlers/query_fields.h"
#include "server/jobs/job_supervisor.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

std::string Text(const Json& event) {
  return event.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Job FindJob(const HandlerContext& context, const Request& request) {
  return RequireFineTuningJob(context, request.path_params.at("id"));
}

// A page of `all`, behind the element whose id is `after`.
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

// Sends the events of a job while they come, as LogFollower (admin_jobs.cc) does with its log.
class EventFollower : public std::enable_shared_from_this<EventFollower> {
 public:
  EventFollower(const HandlerContext& context, const Job& job, ResponseWriter writer)
      : context_(context),
        id_(job.id),
        events_(job, FineTuningStepsOf(job)),
        writer_(std::move(writer)) {}

  void Start() {
    const auto wake = [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->PostPump();
    };
    subscription_ = RequireJobs(context_).Subscribe(id_, wake);
    on_drain_ = std::make_shared<std::function<void()>>(wake);
    context_.drain->Subscribe(on_drain_);
    writer_.OnDisconnect([self = shared_from_this()] { self->subscription_.Cancel(); });
    stream_ = writer_.StartEventStream();
    stream_->OnBackpressure([weak = weak_from_this()](bool paused) {
      const auto self = weak.lock();
      if (!self) return;
      self->is_paused_ = paused;
      if (!paused) self->PostPump();
    });
    PostPump();
  }

 private:
  void PostPump() {
    writer_.Post([self = shared_from_this()] { self->Pump(); });
  }

  void Pump() {
    if (is_done_ || is_paused_) return;
    JobSupervisor* jobs = context_.jobs;
    // Asked before the files are read: what an ended job has written is then all there.
    const std::optional<Job> job = jobs == nullptr ? std::nullopt : jobs->Find(id_);
    std::vector<Json> read;
    const bool has_more = events_.ReadMore(&read);
    for (const Json& event : read) stream_->Send(Text(event));
    if (has_more) return PostPump();
    if (job && !IsFinished(job->status) && !context_.is_draining) return;
    is_done_ = true;
    if (job) {
      for (const Json& event : FineTuningEvents::EndEvents(*job)) stream_->Send(Text(event));
    }
    stream_->Send("[DONE]");
    stream_->Close();  // lets go of this follower
  }

  const HandlerContext& context_;
  const std::string id_;
  FineTuningEvents events_;
  const ResponseWriter writer_;
  std::optional<EventStream> stream_;
  std::atomic<bool> is_paused_{false};
  bool is_done_ = false;
  std::shared_ptr<std::function<void()>> on_drain_;
  JobSubscription subscription_;
};

}  // namespace

// GET /v1/fine_tuning/jobs/{id}/events
void ListFineTuningEvents(const HandlerContext& context, Request request, ResponseWriter writer) {
  const Job job = FindJob(context, request);
  const std::string* stream = request.FindQuery("stream");
  if (stream != nullptr && (*stream == "true" || *stream == "1")) {
    std::make_shared<EventFollower>(context, job, std::move(writer))->Start();
    return;
  }
  const auto limit = static_cast<size_t>(QueryInt(request, "limit", 20, 1, 1000));
  FineTuningEvents reader(job, FineTuningStepsOf(job));
  std::vector<Json> events;
  while (reader.ReadMore(&events)) {
  }
  std::stable_sort(events.begin(), events.end(), [](const Json& a, const Json& b) {
    return a["created_at"].get<int64_t>() < b["created_at"].get<int64_t>();
  });
  for (Json& event : FineTuningEvents::EndEvents(job)) events.push_back(std::move(event));
  std::reverse(events.begin(), events.end());
  writer.Json(200, Text(Page(events, request, limit)));
}

// GET /v1/fine_tuning/jobs/{id}/checkpoints
void ListFineTuningCheckpoints(const HandlerContext& context, Request request,
                               ResponseWriter writer) {
  const Job job = FindJob(context, request);
  const auto limit = static_cast<size_t>(QueryInt(request, "limit", 10, 1, 100));
  std::vector<Json> checkpoints;
  // What can be asked as a model is the end; the checkpoints before it serve to resume.
  if (job.status == JobStatus::kSucceeded) {
    const FineTuningFigures figures = ReadFineTuningFigures(job, FineTuningStepsOf(job));
    Json checkpoint;
    checkpoint["id"] = "ftckpt-" + ShortIdOf(job);
    checkpoint["object"] = "fine_tuning.job.checkpoint";
    checkpoint["created_at"] = job.finished_at.value_or(job.created_at);
    checkpoint["fine_tuned_model_checkpoint"] = FineTunedNameOf(job);
    checkpoint["step_number"] = figures.last_step;
    checkpoint["fine_tuning_job_id"] = job.id;
    checkpoint["metrics"] = {{"step", figures.last_step}, {"train_loss", figures.train_loss}};
    for (const Json& row : figures.rows) {
      if (!row.contains("valid_loss")) continue;
      checkpoint["metrics"]["valid_loss"] = row["valid_loss"];
      checkpoint["metrics"]["valid_mean_token_accuracy"] = row["valid_mean_token_accuracy"];
    }
    checkpoints.push_back(std::move(checkpoint));
  }
  writer.Json(200, Text(Page(checkpoints, request, limit)));
}

}  // namespace tandem::server
