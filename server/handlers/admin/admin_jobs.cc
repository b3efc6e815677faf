#include <nlohmann/json.hpp>

#include "convert/spec/spec.h"
#include "server/handlers/admin/convert_spec.h"
#include "server/handlers/admin/pipeline_spec.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"
#include "server/handlers/job_follower.h"
#include "server/handlers/query_fields.h"
#include "server/jobs/job_supervisor.h"
#include "server/wire/field_reader.h"
#include "server/wire/job_spec.h"
#include "training/spec/spec.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

Error JobNotFound(const std::string& id) {
  return Error(ErrorCode::kNotFound, "there is no job '" + id.substr(0, 80) + "'")
      .WithParam("id")
      .WithReason("job_not_found");
}

Job FindJob(const HandlerContext& context, const Request& request) {
  const std::string& id = request.path_params.at("id");
  std::optional<Job> job = RequireJobs(context).Find(id);
  if (!job) throw JobNotFound(id);
  return std::move(*job);
}

Error OnlyForTraining(const std::string& field) {
  return Error(ErrorCode::kUnsupported, field + " applies only to jobs of type train")
      .WithParam(field)
      .WithReason("unsupported_value");
}

// Streams a job's log, one event per line.
class LogFollower final : public JobFollower {
 public:
  LogFollower(const HandlerContext& context, const std::string& id, int64_t offset,
              ResponseWriter writer)
      : JobFollower(context, id, std::move(writer)), offset_(offset) {}

 private:
  static constexpr size_t kPieceBytes = 64 << 10;

  Next Send(EventStream& stream) override {
    JobSupervisor* jobs = context().jobs;
    if (jobs == nullptr) return End(stream, "queued");
    const JobLog log = jobs->ReadLog(job_id(), offset_, kPieceBytes);
    for (const LogLine& line : log.lines.lines) {
      Json data;
      data["offset"] = line.offset;
      data["line"] = line.text;
      stream.SendNamed("log", data.dump());
    }
    offset_ = log.lines.next_offset;
    if (!log.lines.at_end) return Next::kGoOn;
    if (!IsFinished(log.status) && !context().is_draining) return Next::kWait;
    return End(stream, NameOf(log.status));
  }

  static Next End(EventStream& stream, std::string_view status) {
    stream.SendNamed("end", Json{{"status", status}}.dump());
    return Next::kEnd;
  }

  int64_t offset_;
};

}  // namespace

JobSupervisor& RequireJobs(const HandlerContext& context) {
  JobSupervisor* jobs = context.jobs;
  if (jobs == nullptr) throw NotReady(context);
  return *jobs;
}

std::string JobBody(const Job& job) {
  Json out = Json::parse(AdminJobJson(job));
  if (job.type == JobType::kTrain && out["result"].is_object()) {
    // An unmerged adapter is no model: its result has `adapter_dir` and an empty `model_dir`. A
    // merged one has both directories.
    const Json& made = out["result"];
    const bool is_adapter = made.contains("adapter_dir") && made.value("model_dir", "").empty();
    Json result;
    if (!is_adapter) result["model"] = ModelIdOfJob(job.request_json, job.id);
    for (auto& [key, value] : out["result"].items()) {
      if (is_adapter && key == "model_dir") continue;
      result[key == "model_dir" ? "path" : key] = std::move(value);
    }
    out["result"] = std::move(result);
  }
  if (job.type == JobType::kPipeline && out["result"].is_object()) {
    // `loads` is internal: show only the ids of the loaded models.
    Json models = Json::array();
    for (const Json& load : out["result"].value("loads", Json::array())) {
      models.push_back(load.value("id", ""));
    }
    out["result"].erase("loads");
    out["result"]["models"] = std::move(models);
  }
  return out.dump();
}

void SendAccepted(const Job& job, const ResponseWriter& writer) {
  Response response;
  response.status = 202;
  response.body = JobBody(job);
  response.headers.emplace_back("location", "/admin/jobs/" + job.id);
  writer.Send(std::move(response));
}

namespace {

// POST /admin/jobs
void CreateJob(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const Json body = ParseJsonObject(request.body);
  FieldReader reader(body);
  const std::string type_name = reader.RequiredString("type");
  const std::optional<JobType> type = ParseJobType(type_name);
  if (type != JobType::kTrain && type != JobType::kConvert && type != JobType::kPipeline) {
    throw BadValue("type",
                   "type must be train, convert or pipeline, got " + ShortForm(Json(type_name)));
  }
  const Json* spec = reader.Object("spec");
  if (spec == nullptr) throw MissingField("spec");
  const std::optional<std::string> model_id = reader.String("model_id");
  const bool dry_run = reader.Bool("dry_run").value_or(false);
  if (const std::vector<std::string> unknown = reader.unknown(); !unknown.empty()) {
    throw BadValue(unknown.front(), "unknown field " + ShortForm(Json(unknown.front())) +
                                        "; known are type, spec, model_id and dry_run");
  }

  if (type == JobType::kConvert) {
    if (dry_run || model_id) throw OnlyForTraining(dry_run ? "dry_run" : "model_id");
    const std::string checked = convert::ConvertSpecJson(ConvertSpecOf(context, *spec));
    return SendAccepted(RequireJobs(context).Submit(*type, spec->dump(), checked), writer);
  }

  if (type == JobType::kPipeline) {
    if (model_id) throw OnlyForTraining("model_id");
    const CheckedPipeline checked = CheckPipelineSpec(context, *spec);
    if (dry_run) return writer.Json(200, checked.plan_json);
    return SendAccepted(RequireJobs(context).Submit(*type, spec->dump(), checked.spec_json),
                        writer);
  }

  Json named = *spec;
  if (model_id) named["run_name"] = *model_id;
  const std::string checked = CheckTrainSpec(std::move(named), context.model_root).dump();
  if (dry_run) {
    return writer.Json(200, context.plan_training(training::ParseTrainSpec(checked, "spec", {})));
  }
  const std::string id = ModelIdOfJob(checked, "");
  if (!id.empty() && context.models.Contains(id) && context.models.Look(id)->owned_by != "user") {
    throw Error(ErrorCode::kAlreadyExists,
                "a model named '" + id + "' is already served: choose another run_name")
        .WithParam("spec.run_name");
  }
  SendAccepted(RequireJobs(context).Submit(*type, checked), writer);
}

// GET /admin/jobs
void ListJobs(const HandlerContext& context, Request request, ResponseWriter writer) {
  JobFilter filter;
  if (const std::string* type = request.FindQuery("type")) {
    filter.type = ParseJobType(*type);
    if (!filter.type) throw BadValue("type", "type is not a job type: " + ShortForm(Json(*type)));
  }
  if (const std::string* status = request.FindQuery("status")) {
    filter.status = ParseJobStatus(*status);
    if (!filter.status)
      throw BadValue("status", "status is not a job status: " + ShortForm(Json(*status)));
  }
  filter.limit = static_cast<size_t>(QueryInt(request, "limit", 20, 1, 100));
  if (const std::string* after = request.FindQuery("after")) filter.after = *after;
  const JobPage page = RequireJobs(context).List(filter);

  Json body;
  body["object"] = "list";
  body["data"] = Json::array();
  for (const Job& job : page.jobs) body["data"].push_back(Json::parse(JobBody(job)));
  body["has_more"] = page.has_more;
  writer.Json(200, body.dump());
}

// GET /admin/jobs/{id}
void GetJob(const HandlerContext& context, Request request, ResponseWriter writer) {
  writer.Json(200, JobBody(FindJob(context, request)));
}

// POST /admin/jobs/{id}/cancel
void CancelJob(const HandlerContext& context, Request request, ResponseWriter writer) {
  const Job job = FindJob(context, request);
  writer.Json(200, JobBody(RequireJobs(context).Cancel(job.id)));
}

// POST /admin/jobs/{id}/pause
void PauseJob(const HandlerContext& context, Request request, ResponseWriter writer) {
  const Job job = FindJob(context, request);
  writer.Json(200, JobBody(RequireJobs(context).Pause(job.id)));
}

// POST /admin/jobs/{id}/resume
void ResumeJob(const HandlerContext& context, Request request, ResponseWriter writer) {
  const Job job = FindJob(context, request);
  writer.Json(200, JobBody(RequireJobs(context).Resume(job.id)));
}

// GET /admin/jobs/{id}/log
void GetJobLog(const HandlerContext& context, Request request, ResponseWriter writer) {
  const Job job = FindJob(context, request);
  int64_t offset = QueryInt(request, "offset", 0, 0, INT64_MAX);
  const std::string* follow = request.FindQuery("follow");
  if (follow != nullptr && (*follow == "true" || *follow == "1")) {
    std::make_shared<LogFollower>(context, job.id, offset, std::move(writer))->Start();
    return;
  }

  // Without `follow`: one answer with the log so far, about 8 MiB at most.
  constexpr size_t kMaxTextBytes = 8 << 20;
  std::string text;
  for (;;) {
    const JobLog log = RequireJobs(context).ReadLog(job.id, offset, 1 << 20);
    for (const LogLine& line : log.lines.lines) {
      text += line.text;
      text += '\n';
    }
    offset = log.lines.next_offset;
    if (log.lines.at_end || text.size() >= kMaxTextBytes) break;
  }
  writer.AddHeader("x-next-offset", std::to_string(offset));
  writer.Text(200, std::move(text));
}

}  // namespace

std::span<const Endpoint> AdminJobEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"POST", "/admin/jobs", CreateJob, Access::kAdminKey},
      {"GET", "/admin/jobs", ListJobs, Access::kAdminKey},
      {"GET", "/admin/jobs/{id}", GetJob, Access::kAdminKey},
      {"POST", "/admin/jobs/{id}/cancel", CancelJob, Access::kAdminKey},
      {"POST", "/admin/jobs/{id}/pause", PauseJob, Access::kAdminKey},
      {"POST", "/admin/jobs/{id}/resume", ResumeJob, Access::kAdminKey},
      {"GET", "/admin/jobs/{id}/log", GetJobLog, Access::kAdminKey},
  };
  return kEndpoints;
}

}  // namespace tandem::server
