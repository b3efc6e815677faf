#include "server/handlers/fine_tuning/job_draft.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "engine/tokenizer/tokenizer.h"
#include "server/fine_tuning/examine_training_data.h"
#include "server/handlers/fine_tuning/training_file.h"
#include "server/handlers/prompt.h"
#include "server/wire/field_reader.h"
#include "training/spec/spec.h"

namespace tandem::server {
namespace {

// The job checks larger files itself and fails before its first step if they have faults.
constexpr int64_t kExaminedBytes = 4 << 20;
constexpr size_t kListedErrors = 10;

void RefuseBadData(const TrainingData& data, const std::string& param) {
  if (data.bad > 0) {
    std::string message;
    for (size_t i = 0; i < std::min(data.errors.size(), kListedErrors); ++i) {
      const auto& [line, why] = data.errors[i];
      message += (message.empty() ? "" : "; ") +
                 (line > 0 ? "line " + std::to_string(line) + ": " : std::string()) + why;
    }
    if (data.bad > static_cast<int64_t>(kListedErrors) && data.errors.size() > kListedErrors) {
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

// The prompts of the request's samples as the model receives them. The trainer encodes them as
// text, so a prompt that would change meaning there is refused.
std::vector<std::string> RenderPrompts(const FineTuningRequest& request, const ServedModel& model) {
  std::vector<std::string> rendered;
  if (!request.hyperparameters.samples) return rendered;
  for (const std::string& text : request.hyperparameters.samples->prompts) {
    if (model.loaded().chat_template == nullptr) {
      rendered.push_back(text);
      continue;
    }
    ChatPrompt prompt;
    prompt.messages = std::make_shared<const nlohmann::ordered_json>(
        nlohmann::ordered_json::array({{{"role", "user"}, {"content", text}}}));
    const EncodedChat chat = EncodeChat(model, prompt);
    rendered.push_back(engine::JoinPieces(chat.pieces));
    const auto ids =
        model.loaded().tokenizer->Encode(rendered.back(), engine::SpecialTokens::kParseSpecial);
    if (ids == chat.ids) continue;
    throw BadValue("samples.prompts", "samples.prompts must not spell control tokens, got " +
                                          ShortForm(nlohmann::ordered_json(text)));
  }
  return rendered;
}

class Drafting {
 public:
  Drafting(const HandlerContext& context, FineTuningRequest wanted, const TrainingBase& base,
           const Request& request, const ResponseWriter& writer)
      : context_(context),
        files_(RequireFiles(context)),
        request_(std::move(wanted)),
        base_(base),
        viewer_(ViewerOf(context, request)),
        writer_(writer) {}

  JobDraft Run() {
    JobDraft draft;
    const StoredFile training =
        FindTrainingFile(files_, request_.training_file, "training_file", viewer_);
    const LocalBlob training_bytes = files_.Local(training.id);
    LocalBlob validation_bytes;
    TrainingFiles files{training_bytes.path, {}};
    files.training_container = ContainerOfUpload(training.filename);
    draft.data = Examine(training, files, "training_file");
    if (request_.validation_file) {
      const StoredFile validation =
          FindTrainingFile(files_, *request_.validation_file, "validation_file", viewer_);
      validation_bytes = files_.Local(validation.id);
      TrainingFiles alone{validation_bytes.path, {}};
      alone.training_container = ContainerOfUpload(validation.filename);
      Examine(validation, alone, "validation_file");
      files.validation = alone.training;
      files.validation_container = alone.training_container;
    }
    std::random_device device;
    const auto random_seed = static_cast<int64_t>(device() & 0x7fffffff);
    draft.plan = PlanFineTuning(request_, base_, draft.data, random_seed);
    draft.plan.sample_prompts =
        RenderPrompts(request_, *context_.models.Look(request_.model, viewer_));
    draft.spec = TrainSpecOf(draft.plan, base_, files).dump();
    draft.is_unchecked = is_unchecked_;
    return draft;
  }

 private:
  TrainingData Examine(const StoredFile& file, const TrainingFiles& files, const char* param) {
    std::optional<TrainingData> findings;
    if (file.bytes <= kExaminedBytes) {
      findings = ExamineFile(context_, request_, base_, files, writer_);
    }
    TrainingData data;
    if (findings) {
      data = std::move(*findings);
    } else {
      is_unchecked_ = true;
      data.examples = data.samples = CountRows(files);
    }
    RefuseBadData(data, param);
    return data;
  }

  int64_t CountRows(const TrainingFiles& files) {
    if (files.training_container == "json") {
      return CountLines(context_, files.training, writer_).count;
    }
    ExamineOptions options;
    options.is_cancelled = [&](int64_t) { return IsOver(context_, writer_); };
    options.is_enough = [] { return true; };
    const TrainingData data = context_.examine_data(CheckSpecOf(request_, base_, files), options);
    if (data.bad > 0) RefuseBadData(data, "training_file");
    return data.examples;
  }

  const HandlerContext& context_;
  FileStore& files_;
  const FineTuningRequest request_;
  const TrainingBase& base_;
  const std::optional<int64_t> viewer_;
  const ResponseWriter& writer_;
  bool is_unchecked_ = false;
};

}  // namespace

JobDraft DraftJob(const HandlerContext& context, FineTuningRequest wanted, const TrainingBase& base,
                  const Request& request, const ResponseWriter& writer) {
  return Drafting(context, std::move(wanted), base, request, writer).Run();
}

}  // namespace tandem::server
