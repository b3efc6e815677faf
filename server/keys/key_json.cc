#include "server/keys/key_json.h"

#include <nlohmann/json.hpp>

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

Json OrNull(const std::optional<int64_t>& time) { return time ? Json(*time) : Json(); }

}  // namespace

Json KeyJson(const KeyRecord& key) {
  Json out;
  out["id"] = key.id;
  out["object"] = "api_key";
  out["name"] = key.name;
  out["scopes"] = Json::array();
  for (const Scope scope : {Scope::kInfer, Scope::kTrain, Scope::kAdmin}) {
    if (key.scopes.Has(scope)) out["scopes"].push_back(ScopesText({scope}));
  }
  out["created_at"] = key.created_at;
  out["expires_at"] = OrNull(key.expires_at);
  out["revoked_at"] = OrNull(key.revoked_at);
  out["last_used_at"] = OrNull(key.last_used_at);
  return out;
}

}  // namespace tandem::server
