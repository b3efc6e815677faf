#include "server/http/api_keys.h"

#include <openssl/sha.h>

#include <algorithm>
#include <utility>

namespace tandem::server {
namespace {

// The token of `Authorization: Bearer <token>`. A malformed or repeated header counts as absent.
std::optional<std::string_view> BearerToken(const Request& request) {
  const std::string* header = nullptr;
  for (const auto& [name, value] : request.headers) {
    if (name != "authorization") continue;
    if (header != nullptr) return std::nullopt;
    header = &value;
  }
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

}  // namespace

ApiKeys::Digest ApiKeys::DigestOf(std::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

ApiKeys::Digests ApiKeys::DigestsOf(const std::optional<std::string>& key) {
  Digests digests;
  if (key) digests.push_back(DigestOf(*key));
  return digests;
}

// Compares every digest in full and without a data-dependent branch. This takes nanoseconds per
// key, so thousands of keys cost little.
bool ApiKeys::Contains(const Digests& keys, const Digest& digest) {
  uint64_t found = 0;
  for (const Digest& key : keys) {
    const uint64_t difference =
        (key[0] ^ digest[0]) | (key[1] ^ digest[1]) | (key[2] ^ digest[2]) | (key[3] ^ digest[3]);
    // The highest bit is clear only if `difference` is 0.
    found |= ~(difference | (0 - difference)) >> 63;
  }
  return found != 0;
}

ApiKeys::ApiKeys(const std::vector<std::string>& api_keys,
                 const std::optional<std::string>& admin_key,
                 const std::optional<std::string>& metrics_key)
    : admin_key_(DigestsOf(admin_key)), metrics_key_(DigestsOf(metrics_key)) {
  SetApiKeys(api_keys);
}

std::shared_ptr<const ApiKeys::Digests> ApiKeys::api_keys() const {
  const std::lock_guard lock(mutex_);
  return api_keys_;
}

bool ApiKeys::requires_key() const { return !api_keys()->empty(); }

size_t ApiKeys::n_api_keys() const { return api_keys()->size(); }

void ApiKeys::SetApiKeys(const std::vector<std::string>& api_keys) {
  auto digests = std::make_shared<Digests>();
  for (const std::string& key : api_keys) digests->push_back(DigestOf(key));
  std::sort(digests->begin(), digests->end());
  digests->erase(std::unique(digests->begin(), digests->end()), digests->end());
  const std::lock_guard lock(mutex_);
  api_keys_ = std::move(digests);
}

uint64_t ApiKeys::ClientOf(const Request& request) const {
  const std::optional<std::string_view> token = BearerToken(request);
  if (!token) return 0;
  const Digest digest = DigestOf(*token);
  return Contains(*api_keys(), digest) ? digest[0] : 0;
}

bool ApiKeys::IsAdmin(const Request& request) const {
  const std::optional<std::string_view> token = BearerToken(request);
  return token && Contains(admin_key_, DigestOf(*token));
}

bool ApiKeys::HasAnyKey(const Request& request) const {
  const std::optional<std::string_view> token = BearerToken(request);
  if (!token) return false;
  const Digest digest = DigestOf(*token);
  const bool is_api_key = Contains(*api_keys(), digest);
  const bool is_admin_key = Contains(admin_key_, digest);
  const bool is_metrics_key = Contains(metrics_key_, digest);
  return is_api_key || is_admin_key || is_metrics_key;
}

std::optional<Error> ApiKeys::Check(const Request& request, Access access) const {
  if (access == Access::kOpen || (access == Access::kMetricsKey && metrics_key_.empty())) {
    return std::nullopt;
  }
  if (access == Access::kAdminKey && admin_key_.empty()) {
    return Error(ErrorCode::kPermissionDenied,
                 "admin routes are off: start the server with --admin-key-file to enable them")
        .WithReason("admin_disabled");
  }

  const std::optional<std::string_view> token = BearerToken(request);
  const Digest digest = DigestOf(token.value_or(""));
  const std::shared_ptr<const Digests> keys = api_keys();
  const bool is_api_key = Contains(*keys, digest) && token.has_value();
  const bool is_admin_key = Contains(admin_key_, digest) && token.has_value();
  const bool is_metrics_key = Contains(metrics_key_, digest) && token.has_value();

  if (is_admin_key) return std::nullopt;
  if (access == Access::kApiKey && (keys->empty() || is_api_key)) return std::nullopt;
  if (access == Access::kMetricsKey && is_metrics_key) return std::nullopt;
  if (is_api_key) {
    return Error(ErrorCode::kPermissionDenied, "this key may not use this route")
        .WithReason("insufficient_permissions");
  }
  return Error(ErrorCode::kUnauthenticated,
               token ? "incorrect API key" : "missing API key: send 'Authorization: Bearer <key>'")
      .WithReason("invalid_api_key");
}

}  // namespace tandem::server
