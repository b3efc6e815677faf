#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/attempt.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/fine_tuning/job_draft.h"
#include "server/handlers/fine_tuning/training_file.h"
#include "server/wire/field_reader.h"
#include "training/spec/spec.h"

namespace tandem::server {
namespace {

using PlanBody = nlohmann::ordered_json;

PlanBody RefusalJson(const Error& error, const char* fallback) {
  PlanBody out;
  out["code"] = error.reason().empty() ? std::string(fallback) : error.reason();
  out["message"] = error.what();
  out["param"] = error.param().empty() ? PlanBody() : PlanBody(error.param());
  return out;
}

void AddDraft(PlanBody& body, const JobDraft& draft) {
  const FineTuningPlan& plan = draft.plan;
  const TrainingData& data = draft.data;
  body["hyperparameters"] = HyperparametersJson(plan.request);
  body["learning_rate"] = LearningRateOf(plan);
  body["seed"] = *plan.request.seed;
  body["examples"] = data.examples;
  body["samples"] = data.samples;
  body["steps"] = plan.steps;
  body["steps_per_epoch"] = plan.steps_per_epoch;
  body["row_tokens"] = plan.row_tokens;
  // Unknown for a file that the job checks itself.
  const bool is_counted = data.tokens > 0;
  body["tokens_per_epoch"] = is_counted ? PlanBody(data.tokens) : PlanBody();
  body["trained_tokens_per_epoch"] = is_counted ? PlanBody(data.trained_tokens) : PlanBody();
  body["is_checked"] = !draft.is_unchecked;
}

// POST /v1/fine_tuning/plan
void PlanFineTuningJob(const HandlerContext& context, Request request, ResponseWriter writer) {
  const FineTuningRequest wanted = ParseJobRequest(context, request);
  if (!wanted.ignored_params.empty()) {
    writer.AddHeader("x-ignored-params", IgnoredParamsHeader(wanted.ignored_params));
  }
  const TrainingBase base = TrainingBaseOf(context, request, wanted.model);
  PlanBody body;
  body["object"] = "fine_tuning.plan";
  body["model"] = wanted.model;
  body["method"] = NameOf(wanted.method);
  body["would_start"] = false;
  body["refusal"] = nullptr;
  JobDraft draft;
  const auto refused = ErrorOf({ErrorCode::kInvalidArgument, ErrorCode::kFailedPrecondition},
                               [&] { draft = DraftJob(context, wanted, base, request, writer); });
  if (refused) {
    body["refusal"] = RefusalJson(*refused, "invalid_value");
    return writer.Json(200, body.dump(-1, ' ', false, PlanBody::error_handler_t::replace));
  }
  AddDraft(body, draft);
  const training::TrainSpec spec = training::ParseTrainSpec(draft.spec, "spec", {});
  const auto too_large = ErrorOf({ErrorCode::kResourceExhausted, ErrorCode::kInvalidArgument}, [&] {
    PlanBody plan = PlanBody::parse(context.plan_training(spec));
    plan.erase("steps");
    if (plan["memory_refusal"].is_string()) {
      body["refusal"] = {
          {"code", "out_of_memory"}, {"message", plan["memory_refusal"]}, {"param", nullptr}};
    }
    plan.erase("memory_refusal");
    body.update(plan);
  });
  if (too_large) body["refusal"] = RefusalJson(*too_large, "out_of_memory");
  body["would_start"] = body["refusal"].is_null();
  writer.Json(200, body.dump(-1, ' ', false, PlanBody::error_handler_t::replace));
}

}  // namespace

std::span<const Endpoint> FineTuningPlanEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"POST", "/v1/fine_tuning/plan", PlanFineTuningJob, Access::kTrainKey, RunsOn::kWorker},
  };
  return kEndpoints;
}

}  // namespace tandem::server
