#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
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

// SHA-256 of a key, as four words in memory order.
using KeyDigest = std::array<uint64_t, 4>;
KeyDigest DigestOfKey(std::string_view key);

// What a key may do.
enum class Scope : uint8_t { kInfer = 1, kTrain = 2, kAdmin = 4 };
class Scopes {
 public:
  constexpr Scopes() = default;
  constexpr Scopes(std::initializer_list<Scope> scopes) {
    for (const Scope scope : scopes) Add(scope);
  }
  constexpr void Add(Scope scope) { bits_ |= static_cast<uint8_t>(scope); }
  constexpr bool Has(Scope scope) const { return (bits_ & static_cast<uint8_t>(scope)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool operator==(const Scopes&) const = default;
  constexpr Scopes operator|(Scopes other) const {
    other.bits_ |= bits_;
    return other;
  }

 private:
  uint8_t bits_ = 0;
};

// A key of the keys database.
struct ManagedKey {
  KeyDigest digest{};
  Scopes scopes;
  std::optional<int64_t> expires_at;  // seconds since 1970; counts as no key from then on
};

// Checks the keys of requests. Keys are stored and compared as SHA-256 digests, in constant time,
// and never appear in messages or logs. Thread-safe.
//
// API keys of flags and files have the scopes infer and train, the admin key has all. Managed keys
// have their own scopes.
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
  // Replaces the keys of the keys database. With `requires_key` the API stays closed without keys
  // from now on, even if all keys have been revoked.
  void SetManagedKeys(std::vector<ManagedKey> keys, bool requires_key);
  // Opens the admin routes to managed keys although no admin key is set.
  void EnableAdmin() { admin_enabled_ = true; }

  // Identifies the caller by a number per API key, stable across SetApiKeys and restarts. 0 if no
  // key is needed or the request has none of ours.
  uint64_t ClientOf(const Request& request) const;
  // The scopes of the API key with that number; empty: unknown, revoked or expired.
  Scopes ScopesOfClient(uint64_t client) const;
  // Whether the request carries the admin key of the flags.
  bool IsAdmin(const Request& request) const;
  // Whether the request carries that admin key or a managed key with the scope admin.
  bool HasAdminScope(const Request& request) const;
  bool HasMetricsKey(const Request& request) const;
  // Whether the request carries any of our keys, of whatever kind.
  bool HasAnyKey(const Request& request) const;

  // The reason to refuse the request; nullopt accepts it.
  std::optional<Error> Check(const Request& request, Access access) const;

 private:
  using Digests = std::vector<KeyDigest>;
  struct Keys {
    Digests configured;  // sorted
    std::vector<ManagedKey> managed;
    bool requires_key = false;
  };

  static Digests DigestsOf(const std::optional<std::string>& key);
  static bool Contains(const Digests& keys, const KeyDigest& digest);
  static Scopes ManagedScopes(const Keys& keys, const KeyDigest& digest);
  // Scopes of a configured or managed API key; empty: unknown, revoked or expired.
  static Scopes ScopesOf(const Keys& keys, const KeyDigest& digest);

  std::shared_ptr<const Keys> keys() const;

  mutable std::mutex mutex_;  // guards keys_
  std::shared_ptr<const Keys> keys_ = std::make_shared<Keys>();
  const Digests admin_key_;    // at most one
  const Digests metrics_key_;  // at most one
  std::atomic<bool> admin_enabled_{false};
};

}  // namespace tandem::server
