#include <nlohmann/json.hpp>

#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"
#include "server/models/alias_book.h"
#include "server/wire/field_reader.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

AliasBook& RequireAliases(const HandlerContext& context) {
  AliasBook* aliases = context.aliases;
  if (aliases == nullptr) {
    throw Error(ErrorCode::kUnavailable, "the server is starting or stopping")
        .WithReason("model_loading");
  }
  return *aliases;
}

Json AliasObject(const ModelRegistry::Alias& alias) {
  return {{"name", alias.name},
          {"object", "alias"},
          {"target", alias.target},
          {"served", alias.is_served}};
}

std::string AliasName(const Request& request) {
  const std::string& name = request.path_params.at("name");
  if (IsModelName(name)) return name;
  throw BadValue(
      "name", std::string("an alias must be ") + kModelNameRule + ", got " + ShortForm(Json(name)));
}

Error AliasNotFound(const std::string& name) {
  return Error(ErrorCode::kNotFound, "there is no alias '" + name.substr(0, 120) + "'")
      .WithParam("name")
      .WithReason("alias_not_found");
}

Json OrNull(const std::optional<std::string>& text) { return text ? Json(*text) : Json(); }

// GET /admin/aliases
void ListAliases(const HandlerContext& context, Request, ResponseWriter writer) {
  Json body;
  body["object"] = "list";
  body["data"] = Json::array();
  for (const auto& alias : context.models.Aliases()) body["data"].push_back(AliasObject(alias));
  writer.Json(200, body.dump());
}

// GET /admin/aliases/{name}
void GetAlias(const HandlerContext& context, Request request, ResponseWriter writer) {
  const std::string name = AliasName(request);
  const std::optional<ModelRegistry::Alias> alias = context.models.FindAlias(name);
  if (!alias) throw AliasNotFound(name);
  writer.Json(200, AliasObject(*alias).dump());
}

// PUT /admin/aliases/{name}
void PutAlias(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const std::string name = AliasName(request);
  const Json body = ParseJsonObject(request.body);
  FieldReader reader(body);
  const std::string target = reader.RequiredString("target");
  RefuseUnknownFields(reader, "target");
  const std::optional<std::string> previous = RequireAliases(context).Set(name, target);
  Json answer = AliasObject({name, target, true});
  answer["previous"] = OrNull(previous);
  writer.Json(200, answer.dump());
}

// DELETE /admin/aliases/{name}
void DeleteAlias(const HandlerContext& context, Request request, ResponseWriter writer) {
  const std::string name = AliasName(request);
  const std::optional<std::string> previous = RequireAliases(context).Remove(name);
  if (!previous) throw AliasNotFound(name);
  const Json answer = {
      {"name", name}, {"object", "alias"}, {"deleted", true}, {"previous", *previous}};
  writer.Json(200, answer.dump());
}

}  // namespace

std::span<const Endpoint> AliasEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"GET", "/admin/aliases", ListAliases, Access::kAdminKey},
      {"GET", "/admin/aliases/{name+}", GetAlias, Access::kAdminKey},
      {"PUT", "/admin/aliases/{name+}", PutAlias, Access::kAdminKey},
      {"DELETE", "/admin/aliases/{name+}", DeleteAlias, Access::kAdminKey},
  };
  return kEndpoints;
}

}  // namespace tandem::server
