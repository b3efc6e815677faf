#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "server/http/request.h"
#include "server/http/router.h"

namespace tandem::server {

// Who may come in (CONTRACT §2). Keys are kept and compared as SHA-256 digests, in constant time,
// and never appear in messages or logs. Thread-safe.
class ApiKeys {
 public:
  // No API keys: the API is open. No admin key: admin routes are closed.
  ApiKeys(const std::vector<std::string>& api_keys, const std::optional<std::string>& admin_key);

  bool requires_key() const;
  // Replaces the API keys (their file was read again); the admin key stays.
  void SetApiKeys(const std::vector<std::string>& api_keys);

  // Whose request it is: a number per API key that stays the same over SetApiKeys, or 0 when no
  // key is needed or the request's is none of ours.
  uint64_t ClientOf(const Request& request) const;
  bool IsAdmin(const Request& request) const;

  // Why the request is refused; nullopt lets it in.
  std::optional<Error> Check(const Request& request, Access access) const;

 private:
  using Digest = std::array<uint8_t, 32>;

  static Digest DigestOf(std::string_view key);

  mutable std::mutex mutex_;  // guards api_keys_
  std::vector<Digest> api_keys_;
  const std::optional<Digest> admin_key_;
};

}  // namespace tandem::server
