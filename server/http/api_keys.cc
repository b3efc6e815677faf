#include "server/http/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstring>

namespace tandem::server {
namespace {

// The token of `Authorization: Bearer <token>`; anything else is as if absent.
std::optional<std::string_view> BearerToken(const Request& request) {
  const std::string* header = request.FindHeader("authorization");
  if (header == nullptr) return std::nullopt;
  const std::string_view text(*header);
  const size_t space = text.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  std::string scheme(text.substr(0, space));
  std::transform(scheme.begin(), scheme.end(), scheme.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const std::string_view token = text.substr(space + 1);
  if (scheme != "bearer" || token.empty() || token.find(' ') != std::string_view::npos) {
    return std::nullopt;
  }
  return token;
}

}  // namespace

ApiKeys::Digest ApiKeys::DigestOf(std::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

ApiKeys::ApiKeys(const std::vector<std::string>& api_keys,
                 const std::optional<std::string>& admin_key)
    : admin_key_(admin_key ? std::optional<Digest>(DigestOf(*admin_key)) : std::nullopt) {
  SetApiKeys(api_keys);
}

bool ApiKeys::requires_key() const {
  const std::lock_guard lock(mutex_);
  return !api_keys_.empty();
}

void ApiKeys::SetApiKeys(const std::vector<std::string>& api_keys) {
  std::vector<Digest> digests;
  for (const std::string& key : api_keys) digests.push_back(DigestOf(key));
  const std::lock_guard lock(mutex_);
  api_keys_ = std::move(digests);
}

uint64_t ApiKeys::ClientOf(const Request& request) const {
  const std::optional<std::string_view> token = BearerToken(request);
  if (!token) return 0;
  const Digest digest = DigestOf(*token);
  const std::lock_guard lock(mutex_);
  bool is_ours = false;
  for (const Digest& key : api_keys_) {
    is_ours |= CRYPTO_memcmp(key.data(), digest.data(), digest.size()) == 0;
  }
  if (!is_ours) return 0;
  uint64_t client = 0;
  std::memcpy(&client, digest.data(), sizeof(client));
  return client;
}

bool ApiKeys::IsAdmin(const Request& request) const {
  const std::optional<std::string_view> token = BearerToken(request);
  if (!token || !admin_key_) return false;
  const Digest digest = DigestOf(*token);
  return CRYPTO_memcmp(admin_key_->data(), digest.data(), digest.size()) == 0;
}

std::optional<Error> ApiKeys::Check(const Request& request, Access access) const {
  if (access == Access::kOpen) return std::nullopt;
  if (access == Access::kAdminKey && !admin_key_) {
    return Error(ErrorCode::kPermissionDenied,
                 "admin routes are off: start the server with --admin-key to use them")
        .WithReason("admin_disabled");
  }

  const std::optional<std::string_view> token = BearerToken(request);
  bool is_api_key = false;
  bool is_admin_key = false;
  bool is_open = false;
  {
    // Every digest is compared to its end, whichever matches.
    const Digest digest = DigestOf(token.value_or(""));
    const std::lock_guard lock(mutex_);
    is_open = api_keys_.empty();
    for (const Digest& key : api_keys_) {
      is_api_key |= CRYPTO_memcmp(key.data(), digest.data(), digest.size()) == 0;
    }
    is_admin_key =
        admin_key_ && CRYPTO_memcmp(admin_key_->data(), digest.data(), digest.size()) == 0;
    is_api_key = is_api_key && token.has_value();
    is_admin_key = is_admin_key && token.has_value();
  }

  if (is_admin_key) return std::nullopt;
  if (access == Access::kApiKey && (is_open || is_api_key)) return std::nullopt;
  if (is_api_key) {
    return Error(ErrorCode::kPermissionDenied, "this key may not use admin routes")
        .WithReason("insufficient_permissions");
  }
  return Error(ErrorCode::kUnauthenticated,
               token ? "incorrect API key" : "missing API key: send 'Authorization: Bearer <key>'")
      .WithReason("invalid_api_key");
}

}  // namespace tandem::server
