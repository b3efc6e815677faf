#include "server/handlers/fine_tuning/training_file.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/attempt.h"
#include "server/fine_tuning/examine_training_data.h"
#include "server/handlers/text_budget.h"
#include "server/wire/field_reader.h"
#include "training/spec/spec.h"

namespace tandem::server {

FineTuningRequest ParseJobRequest(const HandlerContext& context, const Request& request) {
  RequireJson(request);
  const nlohmann::ordered_json body = ParseJsonObject(request.body);
  // Report an unknown model before any other fault.
  if (const auto model = body.find("model"); model != body.end() && model->is_string()) {
    context.models.Look(model->get<std::string>(), ViewerOf(context, request));
  }
  return ParseFineTuningRequest(body);
}

TrainingBase TrainingBaseOf(const HandlerContext& context, const Request& request,
                            const std::string& model_name) {
  const std::shared_ptr<const ServedModel> model =
      context.models.Look(model_name, ViewerOf(context, request));
  const ServedModel& base = model->base ? *model->base : *model;
  TrainingBase out;
  out.id = base.id;
  out.path = context.path_of_model(base);
  if (model->base) out.adapter_path = std::filesystem::absolute(model->path).string();
  out.max_model_len = base.loaded().max_model_len;
  out.has_chat_template = base.loaded().chat_template != nullptr;
  return out;
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

Error InvalidTrainingFile(const std::string& param, const std::string& message) {
  return Error(ErrorCode::kInvalidArgument, message)
      .WithParam(param)
      .WithReason("invalid_training_file");
}

bool IsOver(const HandlerContext& context, const ResponseWriter& writer) {
  return context.is_draining || writer.is_over();
}

void ThrowIfOver(const HandlerContext& context, const ResponseWriter& writer) {
  if (!IsOver(context, writer)) return;
  throw Error(ErrorCode::kUnavailable, "the server is shutting down").WithReason("shutting_down");
}

FileLines CountLines(const HandlerContext& context, const std::filesystem::path& path,
                     const ResponseWriter& writer) {
  std::ifstream in(path, std::ios::binary);
  std::string piece(size_t{1} << 20, '\0');
  FileLines lines;
  int64_t length = 0;
  bool has_text = false;
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())), in.gcount() > 0) {
    ThrowIfOver(context, writer);
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

training::TrainSpec CheckSpecOf(const FineTuningRequest& request, const TrainingBase& base,
                                const TrainingFiles& files) {
  TrainingData one_row;
  one_row.samples = 1;
  const FineTuningPlan plan = PlanFineTuning(request, base, one_row, 0);
  return training::ParseTrainSpec(TrainSpecOf(plan, base, files).dump(), "spec", {});
}

std::optional<TrainingData> ExamineFile(const HandlerContext& context,
                                        const FineTuningRequest& request, const TrainingBase& base,
                                        const TrainingFiles& files, const ResponseWriter& writer) {
  TextBudget budget(kMostCheckedText, [&] { return IsOver(context, writer); });
  TrainingData data;
  const auto cancelled = ErrorOf({ErrorCode::kCancelled}, [&] {
    ExamineOptions options;
    options.is_cancelled = [&](int64_t n_bytes) { return budget.Spend(n_bytes); };
    data = context.examine_data(CheckSpecOf(request, base, files), options);
  });
  if (!cancelled) return data;
  ThrowIfOver(context, writer);
  if (!budget.is_exceeded()) throw Error(*cancelled);
  return std::nullopt;
}

}  // namespace tandem::server
