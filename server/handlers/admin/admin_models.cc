#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/attempt.h"
#include "engine/base/memory_ledger.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"
#include "server/handlers/tool_formats.h"
#include "server/models/model_host.h"
#include "server/models/model_object.h"
#include "server/wire/field_reader.h"
#include "server/wire/job_spec.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

ModelHost& RequireHost(const HandlerContext& context) {
  RequireJobs(context);  // throws if there is no data directory
  ModelHost* host = context.model_host;
  if (host == nullptr) throw NotReady(context);
  return *host;
}

bool IsDType(const std::string& name) {
  constexpr std::array<std::string_view, 5> kNames = {"auto", "f32", "bf16", "int8", "int4"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

// Sets spec.source to a path below the model root. A path that does not exist may name an embedded
// model.
void FindSource(const HandlerContext& context, const std::string& path, ModelLoadSpec& spec) {
  const auto no_such_path = ErrorOf({ErrorCode::kNotFound}, [&] {
    spec.source = ResolvePath(context.model_root, path, "path").string();
  });
  if (!no_such_path) return;
  if (!context.is_named_model(path)) throw Error(*no_such_path);
  spec.source = path;
  spec.is_embedded = true;
}

// Sends 202 with the job, unless the client waits for its end.
void Answer(const Job& job, bool wait, const ResponseWriter& writer) {
  if (wait) return;  // AnswerAtTheEnd responds
  Response response;
  response.status = 202;
  response.body = JobBody(job);
  response.headers.emplace_back("location", "/admin/jobs/" + job.id);
  writer.Send(std::move(response));
}

ModelHost::OnEnd AnswerAtTheEnd(bool wait, const ResponseWriter& writer) {
  if (!wait) return nullptr;
  return [writer](const Job& job) { writer.Json(200, JobBody(job)); };
}

Json MemoryJson(const MemoryClaim& claim) {
  return {{"weights", claim.weights},
          {"weights_mapped", claim.weights_mapped},
          {"kv", claim.kv},
          {"scratch", claim.scratch}};
}

Json OtherJson(const ModelHost::Other& model) {
  using State = ModelHost::Other::State;
  Json out;
  out["id"] = model.id;
  out["state"] = model.state == State::kLoading     ? "loading"
                 : model.state == State::kUnloading ? "unloading"
                                                    : "failed";
  const ModelHost::About& about = model.about;
  out["format"] = about.format.empty() ? Json() : Json(about.format);
  out["dtype"] = about.dtype.empty() ? Json() : Json(about.dtype);
  out["max_model_len"] = about.max_model_len == 0 ? Json() : Json(about.max_model_len);
  out["memory_bytes"] = model.memory.total();
  out["memory"] = MemoryJson(model.memory);
  out["adapters"] = Json::array();
  out["running"] = model.running;
  out["waiting"] = model.waiting;
  out["pinned"] = model.pinned;
  out["idle_unload_s"] = model.idle_unload_s;
  out["job"] = model.job_id;
  if (model.state == State::kLoading) out["progress"] = model.progress;
  if (model.state == State::kFailed) out["error"] = model.error;
  return out;
}

// GET /admin/models
void ListAdminModels(const HandlerContext& context, Request, ResponseWriter writer) {
  Json body;
  body["object"] = "list";
  body["data"] = Json::array();
  ModelHost::Listing models;
  if (const ModelHost* host = context.model_host) {
    models = host->List();
  } else {
    models.served = context.models.List();
  }
  for (const auto& [name, model] : models.served) {
    if (name != model->id || model->base) continue;  // a second name, or an adapter
    const engine::EngineStats stats = model->engine->stats();
    MemoryClaim memory = model->memory.claim();
    Json adapters = Json::array();
    for (const auto& [other_name, other] : models.served) {
      if (other->base.get() != model.get()) continue;
      adapters.push_back(other_name);
      memory.weights += other->memory.claim().weights;
    }
    Json entry;
    entry["id"] = name;
    entry["state"] = "loaded";
    entry["format"] = model->loaded().format;
    entry["dtype"] = model->loaded().weights_dtype;
    entry["max_model_len"] = model->loaded().max_model_len;
    entry["memory_bytes"] = memory.total();
    entry["memory"] = MemoryJson(memory);
    const engine::ToolFormat* format = ToolFormatOf(context, *model);
    entry["tool_parser"] = format != nullptr ? Json(format->name) : Json();
    entry["adapters"] = std::move(adapters);
    entry["running"] = stats.requests_running;
    entry["waiting"] = stats.requests_waiting;
    entry["pinned"] = model->pinned;
    entry["idle_unload_s"] = model->idle_unload_s;
    entry["provenance"] = ProvenanceJson(*model);
    entry["kv_blocks_total"] = stats.kv_blocks_total;
    entry["kv_blocks_used"] = stats.kv_blocks_used;
    if (stats.states_total > 0) {
      entry["states_total"] = stats.states_total;
      entry["states_used"] = stats.states_used;
      entry["state_snapshots"] = stats.state_snapshots;
    }
    body["data"].push_back(std::move(entry));
  }
  for (const ModelHost::Other& other : models.others) body["data"].push_back(OtherJson(other));
  body["memory"] = {{"budget_bytes", context.memory->budget_bytes()},
                    {"used_bytes", context.memory->used_bytes()},
                    {"free_bytes", context.memory->free_bytes()}};
  writer.Json(200, body.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// Reads the fields that a load and its plan share.
ModelLoadSpec ReadLoadSpec(const HandlerContext& context, FieldReader& reader) {
  ModelLoadSpec spec;
  const std::string path = reader.RequiredString("path");
  spec.max_model_len = reader.Int("max_model_len", 1, int64_t{1} << 30);
  spec.dtype = reader.String("dtype");
  if (spec.dtype && !IsDType(*spec.dtype)) {
    throw BadValue("dtype", "dtype must be auto, f32, bf16, int8 or int4, got " +
                                ShortForm(Json(*spec.dtype)));
  }
  FindSource(context, path, spec);
  return spec;
}

// POST /admin/models/plan
void PlanModelLoad(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const Json body = ParseJsonObject(request.body);
  FieldReader reader(body);
  const ModelLoadSpec spec = ReadLoadSpec(context, reader);
  RefuseUnknownFields(reader, "path, max_model_len and dtype");
  const engine::MemoryPlan plan = RequireHost(context).Plan(spec);
  const int64_t free_bytes = context.memory->free_bytes();
  const bool fits = plan.least.total() <= free_bytes;
  Json out;
  out["object"] = "model.plan";
  out["path"] = reader.RequiredString("path");
  out["format"] = plan.format;
  out["dtype"] = plan.weights_dtype;
  out["max_model_len"] = plan.max_model_len;
  out["parameters"] = plan.parameters;
  out["active_parameters"] = plan.active_parameters;
  out["active_weight_bytes"] = plan.active_weights;
  out["least"] = MemoryJson(plan.least);
  out["least"]["total"] = plan.least.total();
  out["most_kv"] = plan.most_kv;
  out["memory"] = {{"budget_bytes", context.memory->budget_bytes()},
                   {"used_bytes", context.memory->used_bytes()},
                   {"free_bytes", free_bytes}};
  out["fits"] = fits;
  out["held_by"] = Json::array();
  for (const MemoryLedger::Entry& entry : context.memory->Entries()) {
    out["held_by"].push_back({{"owner", entry.owner}, {"bytes", entry.claim.total()}});
  }
  writer.Json(200, out.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// POST /admin/models/load
void LoadModel(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const Json body = ParseJsonObject(request.body);
  FieldReader reader(body);
  ModelLoadSpec spec = ReadLoadSpec(context, reader);
  std::optional<std::string> id = reader.String("id");
  spec.pinned = reader.Bool("pin").value_or(false);
  spec.idle_unload_s = reader.Int("idle_unload_s", 0, int64_t{10} * 365 * 86400).value_or(0);
  const bool wait = reader.Bool("wait").value_or(false);
  RefuseUnknownFields(reader, "path, id, max_model_len, dtype, pin, idle_unload_s and wait");
  spec.id = id ? *id : std::filesystem::path(spec.source).filename().string();
  if (!IsModelName(spec.id)) {
    throw BadValue("id", std::string("id must be ") + kModelNameRule + ", got " +
                             ShortForm(Json(spec.id)) + (id ? "" : " (from path)"));
  }
  ModelHost& host = RequireHost(context);
  Answer(host.Load(spec, body.dump(), AnswerAtTheEnd(wait, writer)), wait, writer);
}

// POST /admin/models/unload
void UnloadModel(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const Json body = ParseJsonObject(request.body);
  FieldReader reader(body);
  const std::string id = reader.RequiredString("id");
  const bool wait = reader.Bool("wait").value_or(false);
  const bool force = reader.Bool("force").value_or(false);
  RefuseUnknownFields(reader, "id, wait and force");
  ModelHost& host = RequireHost(context);
  Answer(host.Unload(id, force, body.dump(), AnswerAtTheEnd(wait, writer)), wait, writer);
}

}  // namespace

std::span<const Endpoint> AdminModelEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"GET", "/admin/models", ListAdminModels, Access::kAdminKey},
      {"POST", "/admin/models/load", LoadModel, Access::kAdminKey},
      {"POST", "/admin/models/plan", PlanModelLoad, Access::kAdminKey},
      {"POST", "/admin/models/unload", UnloadModel, Access::kAdminKey},
  };
  return kEndpoints;
}

}  // namespace tandem::server
