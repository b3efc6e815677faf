#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/fine_tuning/examine_training_data.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/fine_tuning/training_file.h"
#include "server/handlers/token_list.h"
#include "server/wire/field_reader.h"
#include "server/wire/json_text.h"
#include "training/spec/spec.h"

namespace tandem::server {
namespace {

using Findings = nlohmann::ordered_json;
using ExamineClock = std::chrono::steady_clock;

// An examination ends at the first of these bounds and reports what it has seen.
constexpr int64_t kDefaultRows = 10000;
constexpr int64_t kMostRows = 1000000;
constexpr int64_t kExaminedText = int64_t{512} << 20;
constexpr std::chrono::seconds kExaminedTime{20};

constexpr int64_t kDefaultShown = 3;
constexpr int64_t kMostShown = 20;
constexpr size_t kMostShownTokens = 4096;  // of one sequence

struct ExamineRequest {
  FineTuningRequest job;  // model and method only
  int64_t rows = kDefaultRows;
  int64_t shown = kDefaultShown;
};

ExamineRequest ParseExamineRequest(const HandlerContext& context, const Request& request) {
  RequireJson(request);
  const Findings body = ParseJsonObject(request.body);
  FieldReader reader(body);
  ExamineRequest out;
  out.job.model = reader.RequiredString("model");
  context.models.Look(out.job.model, ViewerOf(context, request));
  const std::string method = reader.String("method").value_or("supervised");
  if (method == "dpo") {
    out.job.method = FineTuningMethod::kDpo;
  } else if (method != "supervised") {
    throw BadValue("method",
                   "method must be supervised or dpo, got " + ShortForm(Findings(method)));
  }
  out.rows = reader.Int("rows", 1, kMostRows).value_or(kDefaultRows);
  out.shown = reader.Int("examples", 0, kMostShown).value_or(kDefaultShown);
  out.job.hyperparameters.seq_len = reader.Int("seq_len", 16, int64_t{1} << 30);
  // The names are those of the fine-tuning API, whose parser checks the format.
  Findings job = {{"model", out.job.model}, {"training_file", ""}};
  Findings& type = job["method"];
  type["type"] = method;
  if (const auto format = reader.String("format")) {
    type[method]["hyperparameters"]["format"] = *format;
    const auto bad = ErrorOf({ErrorCode::kInvalidArgument}, [&] {
      out.job.hyperparameters.format = ParseFineTuningRequest(job).hyperparameters.format;
    });
    if (bad) {
      const std::string message = bad->what();
      throw BadValue("format", message.substr(message.find("format must")));
    }
  }
  RefuseUnknownFields(reader, "model, method, format, seq_len, rows and examples");
  return out;
}

// Counts rows, text and time of one examination. The check calls it on one thread.
class ExamineBounds {
 public:
  ExamineBounds(int64_t rows, std::function<bool()> is_over)
      : rows_left_(rows), is_over_(std::move(is_over)) {}

  // For ExamineOptions::is_cancelled.
  bool Spend(int64_t n_bytes) {
    if (n_bytes > 0) {
      text_left_ -= n_bytes;
      if (text_left_ < 0) Stop("bytes");
      if (ExamineClock::now() > end_) Stop("time");
    }
    return is_over_() || (n_bytes > 0 && stopped_by_ != nullptr);
  }
  // For ExamineOptions::is_enough.
  bool IsEnough() {
    if (stopped_by_ == nullptr && --rows_left_ < 0) Stop("rows");
    if (ExamineClock::now() > end_) Stop("time");
    return stopped_by_ != nullptr;
  }
  const char* stopped_by() const { return stopped_by_; }  // null: nothing

 private:
  void Stop(const char* why) {
    if (stopped_by_ == nullptr) stopped_by_ = why;
  }

  int64_t rows_left_;
  int64_t text_left_ = kExaminedText;
  const ExamineClock::time_point end_ = ExamineClock::now() + kExaminedTime;
  const std::function<bool()> is_over_;
  const char* stopped_by_ = nullptr;
};

// Samples per doubling range of lengths.
Findings HistogramOf(const TrainingData& data) {
  Findings histogram = Findings::array();
  for (int64_t from = 0, to = 16; !data.lengths.empty() && from <= data.longest;
       from = to, to *= 2) {
    const auto n = std::count_if(data.lengths.begin(), data.lengths.end(),
                                 [&](int64_t length) { return length >= from && length < to; });
    histogram.push_back({{"from", from}, {"to", to}, {"samples", n}});
  }
  return histogram;
}

void AppendSequence(std::string& out, const ServedModel& model, const TrainingExample& example,
                    size_t begin, size_t end) {
  const size_t shown_end = std::min(end, begin + kMostShownTokens);
  const std::span<const TokenId> ids(example.ids.data() + begin, shown_end - begin);
  const std::vector<bool> loss(example.loss.begin() + static_cast<std::ptrdiff_t>(begin),
                               example.loss.begin() + static_cast<std::ptrdiff_t>(shown_end));
  out += R"({"tokens":)";
  AppendTokenList(out, model, ids, loss);
  out += R"(,"count":)";
  AppendJsonInt(out, end - begin);
  out += "}";
}

void AppendExample(std::string& out, const ServedModel& model, const TrainingExample& example) {
  if (example.second == 0) return AppendSequence(out, model, example, 0, example.ids.size());
  out += R"({"chosen":)";
  AppendSequence(out, model, example, 0, example.second);
  out += R"(,"rejected":)";
  AppendSequence(out, model, example, example.second, example.ids.size());
  out += "}";
}

Findings ExaminationJson(const StoredFile& file, const ExamineRequest& wanted,
                         const TrainingData& data, const char* stopped_by) {
  Findings body;
  body["object"] = "file.examination";
  body["file"] = file.id;
  body["filename"] = file.filename;
  body["bytes"] = file.bytes;
  body["model"] = wanted.job.model;
  body["method"] = NameOf(wanted.job.method);
  body["container"] = ContainerOfUpload(file.filename);
  body["format"] = data.format.empty() ? Findings() : Findings(data.format);
  body["complete"] = stopped_by == nullptr || data.checked == data.examples;
  body["stopped_by"] =
      body["complete"].get<bool>() ? Findings() : Findings(std::string(stopped_by));
  body["rows"] = data.examples;
  body["checked_rows"] = data.checked;
  body["bad_rows"] = data.bad;
  body["errors"] = Findings::array();
  for (const auto& [line, message] : data.errors) {
    body["errors"].push_back(
        {{"line", line > 0 ? Findings(line) : Findings()}, {"message", message}});
  }
  body["split_rows"] = data.split_rows;
  body["samples"] = data.samples;
  body["duplicates"] = data.duplicates;
  body["over_length"] = data.over_length;
  body["tokens"] = {{"total", data.tokens},
                    {"trained", data.trained_tokens},
                    {"longest", data.longest},
                    {"histogram", HistogramOf(data)}};
  return body;
}

// POST /v1/files/{id}/examine
void ExamineUpload(const HandlerContext& context, Request request, ResponseWriter writer) {
  const ExamineRequest wanted = ParseExamineRequest(context, request);
  const Viewer viewer = ViewerOf(context, request);
  const TrainingBase base = TrainingBaseOf(context, request, wanted.job.model);
  FileStore& files = RequireFiles(context);
  const StoredFile file = FindTrainingFile(files, request.path_params.at("id"), "id", viewer);
  const LocalBlob bytes = files.Local(file.id);
  TrainingFiles checked{bytes.path, {}};
  checked.training_container = ContainerOfUpload(file.filename);

  ExamineBounds bounds(wanted.rows, [&] { return IsOver(context, writer); });
  ExamineOptions options;
  options.is_cancelled = [&](int64_t n_bytes) { return bounds.Spend(n_bytes); };
  options.is_enough = [&] { return bounds.IsEnough(); };
  options.n_shown = static_cast<size_t>(wanted.shown);
  TrainingData data;
  const auto cancelled = ErrorOf({ErrorCode::kCancelled}, [&] {
    data = context.examine_data(CheckSpecOf(wanted.job, base, checked), options);
  });
  if (cancelled) {
    ThrowIfOver(context, writer);
    throw Error(*cancelled);
  }
  const Findings body = ExaminationJson(file, wanted, data, bounds.stopped_by());
  std::string out = body.dump(-1, ' ', false, Findings::error_handler_t::replace);
  out.back() = ',';  // in place of the closing brace
  out += R"("examples":[)";
  const std::shared_ptr<const ServedModel> model = context.models.Look(wanted.job.model, viewer);
  for (size_t i = 0; i < data.shown.size(); ++i) {
    if (i > 0) out.push_back(',');
    AppendExample(out, *model, data.shown[i]);
  }
  out += "]}";
  writer.Json(200, std::move(out));
}

}  // namespace

std::span<const Endpoint> ExamineEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"POST", "/v1/files/{id}/examine", ExamineUpload, Access::kTrainKey, RunsOn::kWorker},
  };
  return kEndpoints;
}

}  // namespace tandem::server
