#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/unix_time.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/files/file_store.h"
#include "server/fine_tuning/fine_tuning_object.h"
#include "server/fine_tuning/fine_tuning_spec.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/fine_tuning/job_draft.h"
#include "server/handlers/fine_tuning/training_file.h"
#include "server/handlers/handlers.h"
#include "server/handlers/query_fields.h"
#include "server/handlers/token_list.h"
#include "server/jobs/job_record.h"
#include "server/jobs/job_supervisor.h"
#include "server/wire/field_reader.h"
#include "server/wire/fine_tuning_request.h"
#include "server/wire/json_text.h"
#include "training/spec/spec.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

// Validation refuses larger files and longer lines.
constexpr int64_t kMostValidatedBytes = 64 << 20;
constexpr int64_t kLongestLine = 4 << 20;

// Throws kInvalidArgument for files and lines that ExamineFile would need too long for.
void RefuseLongFile(const HandlerContext& context, const StoredFile& file,
                    const std::filesystem::path& path, const ResponseWriter& writer) {
  if (file.bytes > kMostValidatedBytes) {
    throw InvalidTrainingFile("training_file",
                              "validation reads files of at most " +
                                  std::to_string(kMostValidatedBytes >> 20) + " MiB; '" + file.id +
                                  "' has " + std::to_string(file.bytes) +
                                  " bytes. Validate a part of it; a job checks every line");
  }
  if (ContainerOfUpload(file.filename) != "json")
    return;  // no lines; rows have limits of their own
  const FileLines lines = CountLines(context, path, writer);
  if (lines.longest > kLongestLine) {
    throw InvalidTrainingFile("training_file", "validation reads lines of at most " +
                                                   std::to_string(kLongestLine >> 20) + " MiB; '" +
                                                   file.id + "' has a line of " +
                                                   std::to_string(lines.longest) + " bytes");
  }
}

// The fields that the job object and its events need later.
Json RequestJson(const JobDraft& draft, const TrainingBase& base) {
  const FineTuningRequest& request = draft.plan.request;
  Json out;
  out["model"] = request.model;
  out["base"] = base.id;
  out["training_file"] = request.training_file;
  out["validation_file"] = request.validation_file ? Json(*request.validation_file) : Json();
  out["method"] = NameOf(request.method);
  out["hyperparameters"] = HyperparametersJson(request);
  out["suffix"] = request.suffix ? Json(*request.suffix) : Json();
  out["seed"] = *request.seed;
  out["steps"] = draft.plan.steps;
  out["unchecked"] = draft.is_unchecked;
  out["metadata"] = Json();
  if (!request.metadata.empty()) out["metadata"] = Json::object();
  for (const auto& [key, value] : request.metadata) out["metadata"][key] = value;
  return out;
}

Job FindFineTuningJob(const HandlerContext& context, const Request& request) {
  return RequireFineTuningJob(context, request);
}

// Whether the job has every `metadata[k]=v` of the query.
bool HasMetadata(const Job& job, const Request& request) {
  const Json stored = Json::parse(job.request_json, nullptr, false);
  for (const auto& [name, value] : request.query) {
    if (!name.starts_with("metadata[") || !name.ends_with("]")) continue;
    const std::string key = name.substr(9, name.size() - 10);
    const Json::json_pointer at = Json::json_pointer("/metadata") / key;
    if (!stored.is_object() || !stored.contains(at) || stored[at] != value) return false;
  }
  return true;
}

// Appends the first sample in the form of /v1/render with `train`. Appends null if no sample
// exists, or if it is longer than a reply may list.
void AppendSample(std::string& out, const ServedModel& model, const TrainingData& data) {
  const std::vector<TokenId> ids = data.shown.empty() ? std::vector<TokenId>() : data.shown[0].ids;
  if (ids.empty() || std::ssize(ids) > MostListedTokens(model)) {
    out += "null";
    return;
  }
  out += R"({"text":)";
  AppendJsonString(out, engine::Decode(*model.loaded().tokenizer, ids, false));
  out += R"(,"tokens":)";
  AppendTokenList(out, model, ids, data.shown[0].loss);
  out += R"(,"count":)";
  AppendJsonInt(out, ids.size());
  out.push_back('}');
}

}  // namespace

Job RequireFineTuningJob(const HandlerContext& context, const Request& request) {
  const std::string& id = request.path_params.at("id");
  std::optional<Job> job = RequireJobs(context).Find(id);
  if (!job || job->type != JobType::kFineTune || !MaySee(ViewerOf(context, request), job->owner)) {
    throw Error(ErrorCode::kNotFound, "there is no fine-tuning job '" + id.substr(0, 80) + "'")
        .WithParam("id")
        .WithReason("job_not_found");
  }
  return std::move(*job);
}

namespace {

// POST /v1/fine_tuning/jobs
void CreateFineTuningJob(const HandlerContext& context, Request request, ResponseWriter writer) {
  const FineTuningRequest wanted = ParseJobRequest(context, request);
  if (!wanted.ignored_params.empty()) {
    writer.AddHeader("x-ignored-params", IgnoredParamsHeader(wanted.ignored_params));
  }
  const TrainingBase base = TrainingBaseOf(context, request, wanted.model);
  const JobDraft draft = DraftJob(context, wanted, base, request, writer);
  const training::TrainSpec parsed = training::ParseTrainSpec(draft.spec, "spec", {});
  if (wanted.dry_run) return writer.Json(200, context.plan_training(parsed));

  std::vector<std::string> ids = {wanted.training_file};
  if (wanted.validation_file) ids.push_back(*wanted.validation_file);
  Job job;
  RequireFiles(context).Use(ids, [&] {
    job = RequireJobs(context).Submit(JobType::kFineTune, RequestJson(draft, base).dump(),
                                      draft.spec, OwnerOf(request));
  });
  writer.Json(200, FineTuningJobJson(job, UnixNow()).dump());
}

// POST /v1/fine_tuning/validate
void ValidateFineTuning(const HandlerContext& context, Request request, ResponseWriter writer) {
  const FineTuningRequest wanted = ParseJobRequest(context, request);
  const TrainingBase base = TrainingBaseOf(context, request, wanted.model);
  FileStore& files = RequireFiles(context);
  const StoredFile file =
      FindTrainingFile(files, wanted.training_file, "training_file", ViewerOf(context, request));
  const LocalBlob bytes = files.Local(file.id);
  const std::filesystem::path& path = bytes.path;
  TrainingFiles checked{path, {}};
  checked.training_container = ContainerOfUpload(file.filename);
  RefuseLongFile(context, file, path, writer);
  const std::optional<TrainingData> findings = ExamineFile(context, wanted, base, checked, writer);
  if (!findings) {
    throw InvalidTrainingFile("training_file",
                              "validation renders and tokenises at most " +
                                  std::to_string(kMostCheckedText >> 30) + " GiB of text, and '" +
                                  file.id +
                                  "' needs more, because every answer repeats all messages before "
                                  "it: validate a part of it; a job checks every line");
  }
  const TrainingData& data = *findings;

  Json body;
  body["valid"] = data.bad == 0 && data.examples >= kFewestExamples;
  body["examples"] = data.examples;
  body["errors"] = Json::array();
  for (const auto& [line, message] : data.errors) {
    body["errors"].push_back({{"line", line > 0 ? Json(line) : Json()}, {"message", message}});
  }
  if (data.bad == 0 && data.examples < kFewestExamples) {
    body["errors"].push_back({{"line", nullptr}, {"message", "at least 10 examples are needed"}});
  }
  Json histogram = Json::array();
  for (int64_t from = 0, to = 16; !data.lengths.empty() && from <= data.longest;
       from = to, to *= 2) {
    const auto n = std::count_if(data.lengths.begin(), data.lengths.end(),
                                 [&](int64_t length) { return length >= from && length < to; });
    histogram.push_back({{"from", from}, {"to", to}, {"examples", n}});
  }
  body["tokens"] = {{"histogram", std::move(histogram)}, {"total", data.tokens}};
  std::string out = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  out.back() = ',';  // in place of the closing brace
  out += R"("sample":)";
  AppendSample(out, *context.models.Look(wanted.model, ViewerOf(context, request)), data);
  out.push_back('}');
  writer.Json(200, std::move(out));
}

// GET /v1/fine_tuning/jobs
void ListFineTuningJobs(const HandlerContext& context, Request request, ResponseWriter writer) {
  const auto limit = static_cast<size_t>(QueryInt(request, "limit", 20, 1, 100));
  JobFilter filter;
  filter.type = JobType::kFineTune;
  filter.limit = 100;
  filter.viewer = ViewerOf(context, request);
  JobSupervisor& jobs = RequireJobs(context);
  if (const std::string* after = request.FindQuery("after")) {
    const std::optional<Job> last = jobs.Find(*after);
    if (last && MaySee(filter.viewer, last->owner)) {
      filter.after = *after;
    } else {
      filter.limit = 0;  // an unknown id gives an empty page
    }
  }
  Json body;
  body["object"] = "list";
  body["data"] = Json::array();
  body["has_more"] = false;
  bool more = filter.limit > 0;
  while (more && !body["has_more"].get<bool>()) {
    const JobPage page = jobs.List(filter);
    for (const Job& job : page.jobs) {
      if (!HasMetadata(job, request)) continue;
      if (body["data"].size() == limit) {
        body["has_more"] = true;
        break;
      }
      body["data"].push_back(FineTuningJobJson(job, UnixNow()));
    }
    more = page.has_more && !page.jobs.empty();
    if (more) filter.after = page.jobs.back().id;
  }
  writer.Json(200, body.dump());
}

// GET /v1/fine_tuning/jobs/{id}
void GetFineTuningJob(const HandlerContext& context, Request request, ResponseWriter writer) {
  writer.Json(200, FineTuningJobJson(FindFineTuningJob(context, request), UnixNow()).dump());
}

// POST /v1/fine_tuning/jobs/{id}/cancel
void CancelFineTuningJob(const HandlerContext& context, Request request, ResponseWriter writer) {
  const Job job = FindFineTuningJob(context, request);
  writer.Json(200, FineTuningJobJson(RequireJobs(context).Cancel(job.id), UnixNow()).dump());
}

// POST /v1/fine_tuning/jobs/{id}/pause
void PauseFineTuningJob(const HandlerContext& context, Request request, ResponseWriter writer) {
  const Job job = FindFineTuningJob(context, request);
  writer.Json(200, FineTuningJobJson(RequireJobs(context).Pause(job.id), UnixNow()).dump());
}

// POST /v1/fine_tuning/jobs/{id}/resume
void ResumeFineTuningJob(const HandlerContext& context, Request request, ResponseWriter writer) {
  const Job job = FindFineTuningJob(context, request);
  writer.Json(200, FineTuningJobJson(RequireJobs(context).Resume(job.id), UnixNow()).dump());
}

}  // namespace

std::span<const Endpoint> FineTuningJobEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"POST", "/v1/fine_tuning/jobs", CreateFineTuningJob, Access::kTrainKey, RunsOn::kWorker},
      {"POST", "/v1/fine_tuning/validate", ValidateFineTuning, Access::kTrainKey, RunsOn::kWorker},
      {"GET", "/v1/fine_tuning/jobs", ListFineTuningJobs, Access::kTrainKey},
      {"GET", "/v1/fine_tuning/jobs/{id}", GetFineTuningJob, Access::kTrainKey},
      {"POST", "/v1/fine_tuning/jobs/{id}/cancel", CancelFineTuningJob, Access::kTrainKey},
      {"POST", "/v1/fine_tuning/jobs/{id}/pause", PauseFineTuningJob, Access::kTrainKey},
      {"POST", "/v1/fine_tuning/jobs/{id}/resume", ResumeFineTuningJob, Access::kTrainKey},
  };
  return kEndpoints;
}

}  // namespace tandem::server
