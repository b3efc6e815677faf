#include <nlohmann/json.hpp>

#include "server/handlers/handlers.h"

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
  }
  out["capabilities"].push_back("completions");
  out["provenance"] = nullptr;
  return out;
}

}  // namespace

void ListModels(const HandlerContext& context, Request, ResponseWriter writer) {
  Json body;
  body["object"] = "list";
  body["data"] = Json::array();
  for (const auto& entry : context.models.List()) body["data"].push_back(ModelObject(entry));
  writer.Json(200, body.dump());
}

// GET /admin/models
void ListAdminModels(const HandlerContext& context, Request, ResponseWriter writer) {
  Json body;
  body["object"] = "list";
  body["data"] = Json::array();
  for (const auto& [name, model] : context.models.List()) {
    if (name != model->id) continue;  // aliases are no models of their own
    const engine::EngineStats stats = model->engine->stats();
    Json entry;
    entry["id"] = name;
    entry["state"] = "loaded";
    entry["format"] = "hf";
    entry["dtype"] = model->loaded().weights_dtype;
    entry["max_model_len"] = model->loaded().max_model_len;
    entry["memory_bytes"] = model->loaded().weight_bytes;
    entry["adapters"] = Json::array();
    entry["running"] = stats.requests_running;
    entry["waiting"] = stats.requests_waiting;
    entry["kv_blocks_total"] = stats.kv_blocks_total;
    entry["kv_blocks_used"] = stats.kv_blocks_used;
    body["data"].push_back(std::move(entry));
  }
  writer.Json(200, body.dump());
}

void GetModel(const HandlerContext& context, Request request, ResponseWriter writer) {
  const std::string& id = request.path_params.at("id");
  for (const auto& entry : context.models.List()) {
    if (entry.name == id) return writer.Json(200, ModelObject(entry).dump());
  }
  context.models.Find(id);  // throws the error that lists what is served
  throw Error(ErrorCode::kNotFound, "model '" + id.substr(0, 120) + "' is not served here")
      .WithParam("model")
      .WithReason("model_not_found");
}

}  // namespace tandem::server
