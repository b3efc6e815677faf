#include "server/http/api_keys.h"

#include <openssl/sha.h>

#include <algorithm>
#include <utility>

#include "engine/base/unix_time.h"

namespace tandem::server {
namespace {

// The value of a header; null if it is absent or repeated.
const std::string* OnlyHeader(const Request& request, std::string_view lower_case_name) {
  const std::string* header = nullptr;
  for (const auto& [name, value] : request.headers) {
    if (name != lower_case_name) continue;
    if (header != nullptr) return nullptr;
    header = &value;
  }
  return header;
}

// The token of `Authorization: Bearer <token>`. A malformed or repeated header counts as absent.
std::optional<std::string_view> BearerToken(const Request& request) {
  const std::string* header = OnlyHeader(request, "authorization");
  if (header == nullptr) return std::nullopt;
  const std::string_view text(*header);
  const size_t space = text.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  std::string scheme(text.substr(0, space));
  std::transform(scheme.begin(), scheme.end(), scheme.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const std::string_view token = text.substr(space + 1);
  if (scheme != "bearer" || token.empty() || token.find_first_of(" \t") != std::string_view::npos) {
    return std::nullopt;
  }
  return token;
}

// The key of a request: the bearer token, else `x-api-key`, which clients of Anthropic's API send.
std::optional<std::string_view> KeyOf(const Request& request) {
  if (const auto token = BearerToken(request)) return token;
  const std::string* key = OnlyHeader(request, "x-api-key");
  if (key == nullptr || key->empty() || key->find_first_of(" \t") != std::string::npos) {
    return std::nullopt;
  }
  return *key;
}

// All bits set if the digests are equal, else 0; without a data-dependent branch.
uint64_t EqualMask(const KeyDigest& a, const KeyDigest& b) {
  const uint64_t difference = (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]);
  // The highest bit is clear only if `difference` is 0.
  return 0 - (~(difference | (0 - difference)) >> 63);
}

const char* NameOf(Access access) {
  if (access == Access::kAdminKey) return "admin";
  return access == Access::kTrainKey ? "train" : "infer";
}

}  // namespace

KeyDigest DigestOfKey(std::string_view key) {
  KeyDigest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

ApiKeys::Digests ApiKeys::DigestsOf(const std::optional<std::string>& key) {
  Digests digests;
  if (key) digests.push_back(DigestOfKey(*key));
  return digests;
}

// Compares every digest in full. This takes nanoseconds per key, so thousands of keys cost little.
bool ApiKeys::Contains(const Digests& keys, const KeyDigest& digest) {
  uint64_t found = 0;
  for (const KeyDigest& key : keys) found |= EqualMask(key, digest);
  return found != 0;
}

// As Contains: selects the key with that digest by a mask.
Scopes ApiKeys::ManagedScopes(const Keys& keys, const KeyDigest& digest) {
  uint64_t found = 0;  // index + 1
  for (size_t i = 0; i < keys.managed.size(); ++i) {
    found |= EqualMask(keys.managed[i].digest, digest) & (i + 1);
  }
  if (found == 0) return {};
  const ManagedKey& key = keys.managed[found - 1];
  return key.expires_at && *key.expires_at <= UnixNow() ? Scopes() : key.scopes;
}

Scopes ApiKeys::ScopesOf(const Keys& keys, const KeyDigest& digest) {
  const Scopes configured =
      Contains(keys.configured, digest) ? Scopes{Scope::kInfer, Scope::kTrain} : Scopes();
  return configured | ManagedScopes(keys, digest);
}

ApiKeys::ApiKeys(const std::vector<std::string>& api_keys,
                 const std::optional<std::string>& admin_key,
                 const std::optional<std::string>& metrics_key)
    : admin_key_(DigestsOf(admin_key)), metrics_key_(DigestsOf(metrics_key)) {
  SetApiKeys(api_keys);
}

std::shared_ptr<const ApiKeys::Keys> ApiKeys::keys() const {
  const std::lock_guard lock(mutex_);
  return keys_;
}

bool ApiKeys::requires_key() const {
  const std::shared_ptr<const Keys> now = keys();
  return now->requires_key || !now->configured.empty();
}

size_t ApiKeys::n_api_keys() const {
  const std::shared_ptr<const Keys> now = keys();
  return now->configured.size() + now->managed.size();
}

void ApiKeys::SetApiKeys(const std::vector<std::string>& api_keys) {
  Digests digests;
  for (const std::string& key : api_keys) digests.push_back(DigestOfKey(key));
  std::sort(digests.begin(), digests.end());
  digests.erase(std::unique(digests.begin(), digests.end()), digests.end());
  const std::lock_guard lock(mutex_);
  auto next = std::make_shared<Keys>(*keys_);
  next->configured = std::move(digests);
  keys_ = std::move(next);
}

void ApiKeys::SetManagedKeys(std::vector<ManagedKey> keys, bool requires_key) {
  const std::lock_guard lock(mutex_);
  auto next = std::make_shared<Keys>(*keys_);
  next->managed = std::move(keys);
  next->requires_key = next->requires_key || requires_key;
  keys_ = std::move(next);
}

uint64_t ApiKeys::ClientOf(const Request& request) const {
  const std::optional<std::string_view> token = KeyOf(request);
  if (!token) return 0;
  const KeyDigest digest = DigestOfKey(*token);
  return ScopesOf(*keys(), digest).empty() ? 0 : digest[0];
}

// The number is no secret, so no constant time is needed.
Scopes ApiKeys::ScopesOfClient(uint64_t client) const {
  const std::shared_ptr<const Keys> all = keys();
  Scopes scopes;
  for (const KeyDigest& key : all->configured) {
    if (key[0] == client) scopes = scopes | ScopesOf(*all, key);
  }
  for (const ManagedKey& key : all->managed) {
    if (key.digest[0] == client) scopes = scopes | ScopesOf(*all, key.digest);
  }
  return scopes;
}

bool ApiKeys::IsAdmin(const Request& request) const {
  const std::optional<std::string_view> token = KeyOf(request);
  return token && Contains(admin_key_, DigestOfKey(*token));
}

bool ApiKeys::HasAdminScope(const Request& request) const {
  const std::optional<std::string_view> token = KeyOf(request);
  if (!token) return false;
  const KeyDigest digest = DigestOfKey(*token);
  const bool is_admin_key = Contains(admin_key_, digest);
  const bool has_scope = ManagedScopes(*keys(), digest).Has(Scope::kAdmin);
  return is_admin_key || has_scope;
}

bool ApiKeys::HasMetricsKey(const Request& request) const {
  const std::optional<std::string_view> token = KeyOf(request);
  return token && Contains(metrics_key_, DigestOfKey(*token));
}

bool ApiKeys::HasAnyKey(const Request& request) const {
  const bool is_api_key = ClientOf(request) != 0;
  const bool is_admin_key = IsAdmin(request);
  const bool is_metrics_key = HasMetricsKey(request);
  return is_api_key || is_admin_key || is_metrics_key;
}

std::optional<Error> ApiKeys::Check(const Request& request, Access access) const {
  if (access == Access::kOpen || (access == Access::kMetricsKey && metrics_key_.empty())) {
    return std::nullopt;
  }
  if (access == Access::kAdminKey && admin_key_.empty() && !admin_enabled_) {
    return Error(ErrorCode::kPermissionDenied,
                 "admin routes are off: start the server with --admin-key-file to enable them")
        .WithReason("admin_disabled");
  }

  const std::optional<std::string_view> token = KeyOf(request);
  const KeyDigest digest = DigestOfKey(token.value_or(""));
  const std::shared_ptr<const Keys> all = keys();
  const Scopes scopes = token ? ScopesOf(*all, digest) : Scopes();
  const bool is_admin_key = Contains(admin_key_, digest) && token.has_value();
  const bool is_metrics_key = Contains(metrics_key_, digest) && token.has_value();

  if (is_admin_key) return std::nullopt;
  const bool is_open = !all->requires_key && all->configured.empty();
  if (access == Access::kApiKey && (is_open || scopes.Has(Scope::kInfer))) return std::nullopt;
  if (access == Access::kTrainKey && (is_open || scopes.Has(Scope::kTrain))) return std::nullopt;
  if (access == Access::kAdminKey && scopes.Has(Scope::kAdmin)) return std::nullopt;
  if (access == Access::kMetricsKey && (is_metrics_key || scopes.Has(Scope::kAdmin))) {
    return std::nullopt;
  }
  if (!scopes.empty()) {
    const std::string why = access == Access::kMetricsKey
                                ? "this key may not use this route"
                                : std::string(
                                      "this key may not use this route: it lacks the "
                                      "scope ") +
                                      NameOf(access);
    return Error(ErrorCode::kPermissionDenied, why).WithReason("insufficient_permissions");
  }
  return Error(ErrorCode::kUnauthenticated,
               token ? "incorrect API key"
                     : "missing API key: send 'Authorization: Bearer <key>' or 'x-api-key: <key>'")
      .WithReason("invalid_api_key");
}

}  // namespace tandem::server
