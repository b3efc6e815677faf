#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/durable_dirs.h"
#include "server/fine_tuning/fine_tuning_checkpoints.h"
#include "server/fine_tuning/fine_tuning_object.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"
#include "server/jobs/job_files.h"
#include "server/jobs/job_supervisor.h"
#include "server/models/adapter_host.h"
#include "server/models/model_object.h"
#include "server/wire/job_spec.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

Json ModelObject(const ModelRegistry::Entry& entry) {
  const ServedModel& model = *entry.model;
  Json out;
  out["id"] = entry.name;
  out["object"] = "model";
  out["created"] = model.created;
  out["owned_by"] = model.owned_by;
  out["max_model_len"] = model.loaded().max_model_len;
  out["root"] = model.root;
  out["parent"] = model.parent ? Json(*model.parent) : Json();
  out["capabilities"] = Json::array();
  if (model.loaded().tokenizer && model.loaded().chat_template) {
    out["capabilities"].push_back("chat");
    out["capabilities"].push_back("responses");
  }
  out["capabilities"].push_back("completions");
  out["capabilities"].push_back("embeddings");
  out["provenance"] = ProvenanceJson(model);
  return out;
}

// An adapter of another replica, which its first request loads here.
Json ModelObject(const SharedAdapter& adapter, const std::shared_ptr<const ServedModel>& base) {
  Json out = ModelObject({adapter.name, base});
  out["created"] = adapter.created_at;
  out["parent"] = base->id;
  out["provenance"] = nullptr;
  return out;
}

void AddUnloadedAdapters(const HandlerContext& context, Json& data) {
  const AdapterHost* adapters = context.adapter_host;
  if (adapters == nullptr) return;
  for (const SharedAdapter& adapter : adapters->Unloaded()) {
    // The base may leave at any time.
    ErrorOf([&] { data.push_back(ModelObject(adapter, context.models.Look(adapter.base))); });
  }
}

// Marks every job that made a model of this name, so that the next start does not publish it again.
// Deletes their checkpoints. Throws kAlreadyExists (in_use) before any change if one is in use.
void ForgetModel(JobSupervisor& jobs, ModelRegistry& models, const std::string& model_id) {
  JobFilter filter;
  filter.status = JobStatus::kSucceeded;
  filter.limit = 100;
  std::vector<Job> makers;
  for (bool has_more = true; has_more;) {
    const JobPage page = jobs.List(filter);
    for (const Job& job : page.jobs) {
      const bool made_it =
          job.type == JobType::kFineTune
              ? FineTunedNameOf(job) == model_id
              : job.id == model_id || ModelIdOfJob(job.request_json, job.id) == model_id;
      if (made_it) makers.push_back(job);
    }
    has_more = page.has_more && !page.jobs.empty();
    if (has_more) filter.after = page.jobs.back().id;
  }
  for (const Job& job : makers) {
    if (job.type == JobType::kFineTune) RefuseCheckpointsInUse(jobs, job);
  }
  for (const Job& job : makers) {
    MakeDirectories(job.dir);  // perhaps of another replica
    WriteJobFile(job.dir / kModelDeletedFile, "");
    if (job.type == JobType::kFineTune) DeleteFineTuningCheckpoints(jobs, models, job);
    // Last: a replica that learns of it removes the model, and this one may be the first.
    jobs.TellModelDeleted(job.id);
  }
}

// Deletes the checkpoint of that name, loaded or not, and responds. Returns false if no checkpoint
// has that name.
bool DeleteCheckpoint(const HandlerContext& context, const std::string& id, const Viewer& viewer,
                      const ResponseWriter& writer) {
  JobSupervisor* jobs = context.jobs;
  if (jobs == nullptr) return false;
  const auto found = FindFineTuningCheckpoint(*jobs, id);
  if (!found || !MaySee(viewer, found->job.owner)) return false;
  if (context.models.IsClaimed(id)) {
    throw Error(ErrorCode::kAlreadyExists, "'" + id + "' is being loaded")
        .WithParam("model")
        .WithReason("in_use");
  }
  DeleteFineTuningCheckpoint(*jobs, found->checkpoint);
  const std::string body = Json{{"id", id}, {"object", "model"}, {"deleted", true}}.dump();
  const bool is_removed =
      context.models.Contains(id) &&
      context.models.Remove(
          *context.models.Look(id), [writer, body]() mutable { writer.Json(200, std::move(body)); },
          "it was deleted");
  if (!is_removed) writer.Json(200, body);
  return true;
}

}  // namespace

Json ProvenanceJson(const ServedModel& model) {
  return model.provenance.empty() ? Json() : Json::parse(model.provenance);
}

namespace {

void ListModels(const HandlerContext& context, Request request, ResponseWriter writer) {
  Json body;
  body["object"] = "list";
  body["data"] = Json::array();
  const Viewer viewer = ViewerOf(context, request);
  for (const auto& entry : context.models.List(viewer)) body["data"].push_back(ModelObject(entry));
  AddUnloadedAdapters(context, body["data"]);
  // Codex asks with its version and reads this member.
  if (request.FindQuery("client_version") != nullptr) body["models"] = body["data"];
  writer.Json(200, body.dump());
}

// DELETE /v1/models/{id}
void DeleteModel(const HandlerContext& context, Request request, ResponseWriter writer) {
  const std::string& id = request.path_params.at("id");
  const Viewer viewer = ViewerOf(context, request);
  if (DeleteCheckpoint(context, id, viewer, writer)) return;
  const std::shared_ptr<const ServedModel> model = context.models.Look(id, viewer);
  if (const auto alias = context.models.FindAlias(id)) {
    throw Error(ErrorCode::kPermissionDenied,
                "'" + id + "' is an alias of '" + alias->target +
                    "': delete its target, or the alias with DELETE /admin/aliases/" + id)
        .WithParam("model")
        .WithReason("model_protected");
  }
  if (!model->is_tuned()) {
    throw Error(ErrorCode::kPermissionDenied,
                "model '" + id.substr(0, 120) +
                    "' was not created by a job of this server, so it cannot be deleted")
        .WithParam("model")
        .WithReason("model_protected");
  }
  // Mark its jobs first: after a crash here, the next start does not bring the model back.
  if (JobSupervisor* jobs = context.jobs) ForgetModel(*jobs, context.models, model->id);
  Json body;
  body["id"] = id;
  body["object"] = "model";
  body["deleted"] = true;
  const bool is_removed = context.models.Remove(
      *model, [writer, text = body.dump()]() mutable { writer.Json(200, std::move(text)); },
      "it was deleted");
  if (is_removed) return;
  throw Error(ErrorCode::kNotFound,  // another request removed it first
              "model '" + id.substr(0, 120) + "' is no longer served here")
      .WithParam("model")
      .WithReason("model_not_found");
}

void GetModel(const HandlerContext& context, Request request, ResponseWriter writer) {
  const std::string& id = request.path_params.at("id");
  // Look, not Find: even under --any-model-name a path names exactly one model.
  writer.Json(200, ModelObject({id, context.models.Look(id, ViewerOf(context, request))}).dump());
}

}  // namespace

std::span<const Endpoint> ModelEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"GET", "/v1/models", ListModels},
      {"DELETE", "/v1/models/{id+}", DeleteModel, Access::kTrainKey},
      {"GET", "/v1/models/{id+}", GetModel},
  };
  return kEndpoints;
}

}  // namespace tandem::server
