#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"
#include "server/keys/key_json.h"
#include "server/keys/managed_keys.h"
#include "server/wire/field_reader.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

ManagedKeys& RequireKeys(const HandlerContext& context) {
  if (context.keys != nullptr) return *context.keys;
  throw Error(ErrorCode::kFailedPrecondition,
              "the server has no database of keys: start it with --data-dir or --api-keys-db")
      .WithReason("keys_disabled");
}

Scopes ReadScopes(FieldReader& reader) {
  const Json* field = reader.Any("scopes");
  if (field == nullptr) throw MissingField("scopes");
  if (!field->is_array() || field->empty()) {
    throw BadValue("scopes", std::string("scopes must be a list of ") + kScopeRule);
  }
  Scopes scopes;
  for (const Json& one : *field) {
    const std::optional<Scope> scope =
        one.is_string() ? ParseScope(one.get<std::string>()) : std::nullopt;
    if (!scope) {
      throw BadValue("scopes",
                     std::string("a scope must be ") + kScopeRule + ", got " + ShortForm(one));
    }
    scopes.Add(*scope);
  }
  return scopes;
}

// GET /admin/keys
void ListKeys(const HandlerContext& context, Request, ResponseWriter writer) {
  Json body;
  body["object"] = "list";
  body["data"] = Json::array();
  for (const KeyRecord& key : RequireKeys(context).List()) {
    const UsageCounts usage = context.key_usage->Of(key.digest[0]);
    Json one = KeyJson(key);
    one["usage"] = {{"requests", usage.requests},
                    {"prompt_tokens", usage.prompt_tokens},
                    {"generation_tokens", usage.generation_tokens}};
    body["data"].push_back(std::move(one));
  }
  writer.Json(200, body.dump());
}

// POST /admin/keys
void CreateKey(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const Json body = ParseJsonObject(request.body);
  FieldReader reader(body);
  NewKey about;
  about.name = reader.RequiredString("name");
  if (!IsKeyName(about.name)) {
    throw BadValue("name", std::string("name must be ") + kKeyNameRule + ", got " +
                               ShortForm(Json(about.name)));
  }
  about.scopes = ReadScopes(reader);
  about.expires_after_s = reader.Int("expires_after_s", 1, kMaxKeyLifetimeS);
  RefuseUnknownFields(reader, "name, scopes, expires_after_s");
  const CreatedKey created = RequireKeys(context).Create(about);
  Json answer = KeyJson(created.record);
  answer["key"] = created.key;
  writer.AddHeader("cache-control", "no-store");
  writer.Json(200, answer.dump());
}

// DELETE /admin/keys/{id}
void RevokeKey(const HandlerContext& context, Request request, ResponseWriter writer) {
  const KeyRecord key = RequireKeys(context).Revoke(request.path_params.at("id"));
  writer.Json(200, KeyJson(key).dump());
}

}  // namespace

std::span<const Endpoint> AdminKeyEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"GET", "/admin/keys", ListKeys, Access::kAdminKey},
      {"POST", "/admin/keys", CreateKey, Access::kAdminKey},
      {"DELETE", "/admin/keys/{id}", RevokeKey, Access::kAdminKey},
  };
  return kEndpoints;
}

}  // namespace tandem::server
