#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "server/http/request.h"
#include "server/http/router.h"

namespace tandem::server {

// Checks the keys of requests. Keys are stored and compared as SHA-256 digests, in constant time,
// and never appear in messages or logs. Thread-safe.
class ApiKeys {
 public:
  // No API keys: the API is open. No admin key: admin routes are closed. No metrics key: metrics
  // are open.
  ApiKeys(const std::vector<std::string>& api_keys, const std::optional<std::string>& admin_key,
          const std::optional<std::string>& metrics_key = std::nullopt);

  bool requires_key() const;
  size_t n_api_keys() const;  // number of different keys
  // Replaces the API keys, for example after their file changed. The other keys stay.
  void SetApiKeys(const std::vector<std::string>& api_keys);

  // Identifies the caller by a number per API key, stable across SetApiKeys. 0 if no key is needed
  // or the request has none of ours.
  uint64_t ClientOf(const Request& request) const;
  bool IsAdmin(const Request& request) const;
  // Whether the request carries any of our keys, of whatever kind.
  bool HasAnyKey(const Request& request) const;

  // The reason to refuse the request; nullopt accepts it.
  std::optional<Error> Check(const Request& request, Access access) const;

 private:
  using Digest = std::array<uint64_t, 4>;
  using Digests = std::vector<Digest>;

  static Digest DigestOf(std::string_view key);
  static Digests DigestsOf(const std::optional<std::string>& key);
  static bool Contains(const Digests& keys, const Digest& digest);

  std::shared_ptr<const Digests> api_keys() const;

  mutable std::mutex mutex_;  // guards api_keys_
  std::shared_ptr<const Digests> api_keys_;
  const Digests admin_key_;    // at most one
  const Digests metrics_key_;  // at most one
};

}  // namespace tandem::server
