#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/attempt.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"
#include "server/models/adapter_host.h"
#include "server/respond/error_response.h"
#include "server/wire/field_reader.h"
#include "server/wire/job_spec.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

AdapterHost& RequireAdapters(const HandlerContext& context) {
  AdapterHost* host = context.adapter_host;
  if (host == nullptr) {
    throw Error(ErrorCode::kUnavailable, "the server is starting or stopping")
        .WithReason("model_loading");
  }
  return *host;
}

// The path as a request would name it: relative to the model root. A path outside the root, from
// the command line or from a job, is unchanged.
std::string ShownPath(const HandlerContext& context, const std::string& path) {
  std::error_code ignored;
  const auto root = std::filesystem::weakly_canonical(context.model_root, ignored);
  const auto relative = std::filesystem::path(path).lexically_relative(root);
  return relative.empty() || *relative.begin() == ".." ? path : relative.string();
}

Json AdapterObject(const HandlerContext& context, const ServedModel& model) {
  Json out;
  out["name"] = model.id;
  out["object"] = "adapter";
  out["base"] = model.base->id;
  out["path"] = ShownPath(context, model.path);
  out["rank"] = model.adapter_rank;
  out["state"] = "loaded";
  out["created"] = model.created;
  out["owned_by"] = model.owned_by;
  out["memory_bytes"] = model.memory.claim().total();
  out["fingerprint"] = model.fingerprint;
  return out;
}

// An adapter of another replica, which its first request loads here.
Json AdapterObject(const HandlerContext& context, const SharedAdapter& adapter) {
  Json out;
  out["name"] = adapter.name;
  out["object"] = "adapter";
  out["base"] = adapter.base;
  out["path"] = ShownPath(context, adapter.path);
  out["state"] = "not_loaded";
  out["created"] = adapter.created_at;
  return out;
}

// Attributes a fault of the adapter's files to the request field that named them.
Error WithPathParam(const Error& error, const std::string& path_param) {
  const std::string& reason = error.reason();
  if (reason != "invalid_adapter" && reason != "unsupported_adapter" &&
      reason != "path_not_found") {
    return error;
  }
  return Error(error.code(), error.what()).WithParam(path_param).WithReason(reason);
}

using Succeed = std::function<void(const ServedModel&)>;

AdapterHost::OnEnd Answer(const ResponseWriter& writer, const Request& request,
                          std::string path_param, Succeed succeed) {
  return [writer, id = request.id, path_param = std::move(path_param),
          succeed = std::move(succeed)](const std::shared_ptr<const ServedModel>& model,
                                        const std::optional<Error>& not_loaded) {
    const std::optional<Error> error = not_loaded ? not_loaded : Attempt([&] { succeed(*model); });
    if (!error) return;
    writer.Send(ToResponse(MakeErrorReply(WithPathParam(*error, path_param), id)));
  };
}

void CheckName(const std::string& name, const std::string& param) {
  if (IsModelName(name)) return;
  throw BadValue(param, param + " must be " + kModelNameRule + ", got " + ShortForm(Json(name)));
}

// GET /admin/adapters
void ListAdapters(const HandlerContext& context, Request, ResponseWriter writer) {
  Json body;
  body["object"] = "list";
  body["data"] = Json::array();
  for (const auto& [name, model] : context.models.List()) {
    if (model->base && name == model->id) body["data"].push_back(AdapterObject(context, *model));
  }
  if (const AdapterHost* adapters = context.adapter_host) {
    for (const SharedAdapter& adapter : adapters->Unloaded()) {
      body["data"].push_back(AdapterObject(context, adapter));
    }
  }
  writer.Json(200, body.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// POST /admin/adapters/load
void LoadAdapter(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const Json body = ParseJsonObject(request.body);
  FieldReader reader(body);
  AdapterLoadSpec spec;
  spec.name = reader.RequiredString("name");
  const std::string path = reader.RequiredString("path");
  spec.base = reader.String("base").value_or("");
  spec.replace = reader.Bool("replace").value_or(false);
  RefuseUnknownFields(reader, "name, path, base and replace");
  CheckName(spec.name, "name");
  spec.path = ResolvePath(context.model_root, path, "path").string();
  const Succeed succeed = [&context, writer](const ServedModel& model) {
    writer.Json(200,
                AdapterObject(context, model).dump(-1, ' ', false, Json::error_handler_t::replace));
  };
  RequireAdapters(context).Load(spec, body.dump(), Answer(writer, request, "path", succeed));
}

// POST /admin/adapters/unload
void UnloadAdapter(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const Json body = ParseJsonObject(request.body);
  FieldReader reader(body);
  const std::string name = reader.RequiredString("name");
  RefuseUnknownFields(reader, "name");
  RequireAdapters(context).Unload(name);
  writer.Json(200, Json{{"name", name}, {"object", "adapter"}, {"unloaded", true}}.dump());
}

// POST /v1/load_lora_adapter, with vLLM's fields and answers
void LoadLoraAdapter(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const Json body = ParseJsonObject(request.body);
  FieldReader reader(body);
  AdapterLoadSpec spec;
  spec.name = reader.RequiredString("lora_name");
  const std::string path = reader.RequiredString("lora_path");
  spec.replace = reader.Bool("load_inplace").value_or(false);
  spec.base = reader.String("base_model_name").value_or("");
  reader.Accept({"lora_int_id", "long_lora_max_len", "is_3d_lora_weight"});
  RefuseUnknownFields(reader, "lora_name, lora_path, load_inplace and base_model_name");
  CheckName(spec.name, "lora_name");
  spec.path = ResolvePath(context.model_root, path, "lora_path").string();
  const Succeed succeed = [writer](const ServedModel& model) {
    writer.Text(200, "Success: LoRA adapter '" + model.id + "' added successfully.");
  };
  const auto taken = ErrorOf({ErrorCode::kAlreadyExists}, [&] {
    RequireAdapters(context).Load(spec, body.dump(), Answer(writer, request, "lora_path", succeed));
  });
  if (!taken) return;
  // vLLM's status for a taken name is 400, not 409.
  throw Error(ErrorCode::kInvalidArgument,
              std::string(taken->what()) + ": unload it first, or set load_inplace")
      .WithParam("lora_name")
      .WithReason("already_exists");
}

// POST /v1/unload_lora_adapter
void UnloadLoraAdapter(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const Json body = ParseJsonObject(request.body);
  FieldReader reader(body);
  const std::string name = reader.RequiredString("lora_name");
  reader.Accept({"lora_int_id"});
  RefuseUnknownFields(reader, "lora_name");
  RequireAdapters(context).Unload(name);
  writer.Text(200, "Success: LoRA adapter '" + name + "' removed successfully.");
}

}  // namespace

std::span<const Endpoint> AdapterEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"GET", "/admin/adapters", ListAdapters, Access::kAdminKey},
      {"POST", "/admin/adapters/load", LoadAdapter, Access::kAdminKey},
      {"POST", "/admin/adapters/unload", UnloadAdapter, Access::kAdminKey},
      {"POST", "/v1/load_lora_adapter", LoadLoraAdapter, Access::kAdminKey},
      {"POST", "/v1/unload_lora_adapter", UnloadLoraAdapter, Access::kAdminKey},
  };
  return kEndpoints;
}

}  // namespace tandem::server
