#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/unix_time.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/files/file_store.h"
#include "server/fine_tuning/fine_tuning_object.h"
#include "server/fine_tuning/fine_tuning_spec.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"
#include "server/handlers/query_fields.h"
#include "server/handlers/text_budget.h"
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

// The job checks larger files itself and fails before its first step if they have faults.
constexpr int64_t kExaminedBytes = 4 << 20;
// Validation refuses larger files and longer lines.
constexpr int64_t kMostValidatedBytes = 64 << 20;
constexpr int64_t kLongestLine = 4 << 20;
// Text that the check of a file may render and tokenise. Each answer of a chat repeats all messages
// before it, so a small file of long chats can need more. The job then checks the file.
constexpr int64_t kMostCheckedText = int64_t{4} << 30;
constexpr int64_t kFewestExamples = 10;
constexpr size_t kListedErrors = 10;

Error InvalidTrainingFile(const std::string& param, const std::string& message) {
  return Error(ErrorCode::kInvalidArgument, message)
      .WithParam(param)
      .WithReason("invalid_training_file");
}

StoredFile FindTrainingFile(FileStore& files, const std::string& id, const char* param,
                            const std::optional<int64_t>& viewer) {
  const std::optional<StoredFile> file = files.Find(id);
  if (!file || !MaySee(viewer, file->owner)) {
    throw Error(ErrorCode::kNotFound, "there is no file '" + id.substr(0, 80) + "'")
        .WithParam(param)
        .WithReason("file_not_found");
  }
  if (file->purpose != "fine-tune") {
    throw BadValue(param, std::string(param) + " must be a file with purpose fine-tune; '" + id +
                              "' has purpose " + file->purpose);
  }
  return *file;
}

struct Lines {
  int64_t count = 0;    // lines with text
  int64_t longest = 0;  // bytes
};

Lines CountLines(const std::filesystem::path& path, const std::function<void()>& throw_if_over) {
  std::ifstream in(path, std::ios::binary);
  std::string piece(size_t{1} << 20, '\0');
  Lines lines;
  int64_t length = 0;
  bool has_text = false;
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())), in.gcount() > 0) {
    throw_if_over();
    for (std::streamsize i = 0; i < in.gcount(); ++i) {
      const char c = piece[static_cast<size_t>(i)];
      if (c == '\n') {
        lines.count += has_text ? 1 : 0;
        has_text = false;
        length = 0;
        continue;
      }
      lines.longest = std::max(lines.longest, ++length);
      if (c != ' ' && c != '\t' && c != '\r') has_text = true;
    }
  }
  lines.count += has_text ? 1 : 0;
  return lines;
}

void RefuseBadData(const TrainingData& data, const std::string& param) {
  if (data.bad > 0) {
    std::string message;
    for (size_t i = 0; i < std::min(data.errors.size(), kListedErrors); ++i) {
      const auto& [line, why] = data.errors[i];
      message += (message.empty() ? "" : "; ") +
                 (line > 0 ? "line " + std::to_string(line) + ": " : std::string()) + why;
    }
    if (data.bad > static_cast<int64_t>(kListedErrors)) {
      message +=
          "; and " + std::to_string(data.bad - static_cast<int64_t>(kListedErrors)) + " more";
    }
    throw InvalidTrainingFile(param, message);
  }
  if (param == "training_file" && data.examples < kFewestExamples) {
    throw InvalidTrainingFile(param, "a training file needs at least 10 examples; this file has " +
                                         std::to_string(data.examples));
  }
}

// Whether a check's result is no longer wanted: the client is gone, or the server stops.
bool IsOver(const HandlerContext& context, const ResponseWriter& writer) {
  return context.is_draining || writer.is_over();
}

void ThrowIfOver(const HandlerContext& context, const ResponseWriter& writer) {
  if (!IsOver(context, writer)) return;
  throw Error(ErrorCode::kUnavailable, "the server is shutting down").WithReason("shutting_down");
}

// Checks every row of a file with the code that a run uses. Absent if that takes more than
// kMostCheckedText.
std::optional<TrainingData> ExamineFile(const HandlerContext& context,
                                        const FineTuningRequest& request, const TrainingBase& base,
                                        const std::filesystem::path& path,
                                        const ResponseWriter& writer) {
  TrainingData one_row;
  one_row.samples = 1;
  const FineTuningPlan plan = PlanFineTuning(request, base, one_row, 0);
  const std::string spec = TrainSpecOf(plan, base, {path, {}}).dump();
  TextBudget budget(kMostCheckedText, [&] { return IsOver(context, writer); });
  TrainingData data;
  const auto cancelled = ErrorOf({ErrorCode::kCancelled}, [&] {
    data = context.examine_data(training::ParseTrainSpec(spec, "spec", {}),
                                [&](int64_t n_bytes) { return budget.Spend(n_bytes); });
  });
  if (!cancelled) return data;
  ThrowIfOver(context, writer);
  if (!budget.is_exceeded()) throw Error(*cancelled);
  return std::nullopt;
}

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
  const Lines lines = CountLines(path, [&] { ThrowIfOver(context, writer); });
  if (lines.longest > kLongestLine) {
    throw InvalidTrainingFile("training_file", "validation reads lines of at most " +
                                                   std::to_string(kLongestLine >> 20) + " MiB; '" +
                                                   file.id + "' has a line of " +
                                                   std::to_string(lines.longest) + " bytes");
  }
}

// The training or validation file of a request, with the findings about it.
struct ExaminedFile {
  std::filesystem::path path;
  TrainingData data;
  bool is_checked = true;  // every line; if false, the job checks them
};

class Creation {
 public:
  Creation(const HandlerContext& context, FineTuningRequest wanted, TrainingBase base,
           const Request& request, const ResponseWriter& writer)
      : context_(context),
        files_(RequireFiles(context)),
        request_(std::move(wanted)),
        base_(std::move(base)),
        owner_(OwnerOf(request)),
        viewer_(ViewerOf(context, request)),
        writer_(writer) {}

  ExaminedFile Examine(const std::string& id, const char* param) {
    const StoredFile file = FindTrainingFile(files_, id, param, viewer_);
    ExaminedFile examined{files_.PathOf(id), {}, false};
    std::optional<TrainingData> findings;
    if (file.bytes <= kExaminedBytes) {
      findings = ExamineFile(context_, request_, base_, examined.path, writer_);
    }
    if (findings) {
      examined.is_checked = true;
      examined.data = std::move(*findings);
    } else {
      const Lines lines = CountLines(examined.path, [&] { ThrowIfOver(context_, writer_); });
      examined.data.examples = examined.data.samples = lines.count;
    }
    RefuseBadData(examined.data, param);
    return examined;
  }

  void Run() {
    const ExaminedFile training = Examine(request_.training_file, "training_file");
    TrainingFiles files{training.path, {}};
    if (request_.validation_file) {
      const ExaminedFile validation = Examine(*request_.validation_file, "validation_file");
      files.validation = validation.path;
      is_unchecked_ = !validation.is_checked;
    }
    if (!training.is_checked) is_unchecked_ = true;
    std::random_device device;
    const auto random_seed = static_cast<int64_t>(device() & 0x7fffffff);
    const FineTuningPlan plan = PlanFineTuning(request_, base_, training.data, random_seed);
    const std::string spec = TrainSpecOf(plan, base_, files).dump();
    const training::TrainSpec parsed = training::ParseTrainSpec(spec, "spec", {});
    if (request_.dry_run) return writer_.Json(200, context_.plan_training(parsed));

    std::vector<std::string> ids = {request_.training_file};
    if (request_.validation_file) ids.push_back(*request_.validation_file);
    Job job;
    files_.Use(ids, [&] {
      job =
          RequireJobs(context_).Submit(JobType::kFineTune, RequestJson(plan).dump(), spec, owner_);
    });
    writer_.Json(200, FineTuningJobJson(job, UnixNow()).dump());
  }

 private:
  // The fields that the job object and its events need later.
  Json RequestJson(const FineTuningPlan& plan) const {
    const FineTuningRequest& request = plan.request;
    Json out;
    out["model"] = request.model;
    out["base"] = base_.id;
    out["training_file"] = request.training_file;
    out["validation_file"] = request.validation_file ? Json(*request.validation_file) : Json();
    out["method"] = NameOf(request.method);
    out["hyperparameters"] = HyperparametersJson(request);
    out["suffix"] = request.suffix ? Json(*request.suffix) : Json();
    out["seed"] = *request.seed;
    out["steps"] = plan.steps;
    out["unchecked"] = is_unchecked_;
    out["metadata"] = Json();
    if (!request.metadata.empty()) out["metadata"] = Json::object();
    for (const auto& [key, value] : request.metadata) out["metadata"][key] = value;
    return out;
  }

  const HandlerContext& context_;
  FileStore& files_;
  const FineTuningRequest request_;
  const TrainingBase base_;
  const std::optional<int64_t> owner_;
  const std::optional<int64_t> viewer_;
  const ResponseWriter& writer_;
  bool is_unchecked_ = false;  // whether the job still has to check a file
};

TrainingBase BaseOf(const HandlerContext& context, const Request& request,
                    const std::string& model_name) {
  const std::shared_ptr<const ServedModel> model =
      context.models.Look(model_name, ViewerOf(context, request));
  const ServedModel& base = model->base ? *model->base : *model;
  TrainingBase out;
  out.id = base.id;
  out.path = context.path_of_model(base);
  if (model->base) out.adapter_path = std::filesystem::absolute(model->path).string();
  out.max_model_len = base.loaded().max_model_len;
  return out;
}

FineTuningRequest ParseRequest(const HandlerContext& context, const Request& request) {
  RequireJson(request);
  const Json body = ParseJsonObject(request.body);
  // Report an unknown model before any other fault.
  if (const auto model = body.find("model"); model != body.end() && model->is_string()) {
    context.models.Look(model->get<std::string>(), ViewerOf(context, request));
  }
  return ParseFineTuningRequest(body);
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
  const std::vector<TokenId>& ids = data.sample_ids;
  if (ids.empty() || std::ssize(ids) > MostListedTokens(model)) {
    out += "null";
    return;
  }
  out += R"({"text":)";
  AppendJsonString(out, engine::Decode(*model.loaded().tokenizer, ids, false));
  out += R"(,"tokens":)";
  AppendTokenList(out, model, ids, data.sample_loss);
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
  FineTuningRequest wanted = ParseRequest(context, request);
  if (!wanted.ignored_params.empty()) {
    writer.AddHeader("x-ignored-params", IgnoredParamsHeader(wanted.ignored_params));
  }
  TrainingBase base = BaseOf(context, request, wanted.model);
  Creation(context, std::move(wanted), std::move(base), request, writer).Run();
}

// POST /v1/fine_tuning/validate
void ValidateFineTuning(const HandlerContext& context, Request request, ResponseWriter writer) {
  const FineTuningRequest wanted = ParseRequest(context, request);
  const TrainingBase base = BaseOf(context, request, wanted.model);
  FileStore& files = RequireFiles(context);
  const StoredFile file =
      FindTrainingFile(files, wanted.training_file, "training_file", ViewerOf(context, request));
  const std::filesystem::path path = files.PathOf(file.id);
  RefuseLongFile(context, file, path, writer);
  const std::optional<TrainingData> findings = ExamineFile(context, wanted, base, path, writer);
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
