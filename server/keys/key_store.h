#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/database/database.h"
#include "server/http/api_keys.h"

namespace tandem::server {

// A managed API key, without the key itself: the database holds only its digest.
struct KeyRecord {
  std::string id;    // "key-" and 24 hexadecimal digits
  std::string name;  // IsKeyName; unique among the keys that are not revoked
  Scopes scopes;
  KeyDigest digest{};
  int64_t created_at = 0;  // this and the next three: seconds since 1970
  std::optional<int64_t> expires_at;
  std::optional<int64_t> revoked_at;
  std::optional<int64_t> last_used_at;  // rounded down to the hour
};

struct NewKey {
  std::string name;
  Scopes scopes;
  std::optional<int64_t> expires_after_s;
};

struct CreatedKey {
  KeyRecord record;
  std::string key;  // the only copy
};

// Names go into tables, logs and labels of metrics: kKeyNameRule.
bool IsKeyName(std::string_view name);
inline constexpr const char* kKeyNameRule = "1 to 64 characters of [A-Za-z0-9._@-]";

// "infer,train", and back. ParseScope returns nullopt for an unknown word.
std::string ScopesText(Scopes scopes);
std::optional<Scope> ParseScope(std::string_view word);
inline constexpr const char* kScopeRule = "infer, train or admin";

// The longest time for which a key may be valid, if it expires.
inline constexpr int64_t kMaxKeyLifetimeS = int64_t{100} * 366 * 24 * 3600;

// The database of managed API keys: a SQLite file that several servers and `tandem keys` may open
// at the same time, or tables of a database that replicas share. One thread at a time. Every method
// throws as Database.
class KeyStore {
 public:
  static constexpr size_t kMaxKeys = 10'000;         // not revoked
  static constexpr int64_t kUseGranularityS = 3600;  // of last_used_at

  // Creates a missing file (mode 0600) and its directory (mode 0700).
  explicit KeyStore(const std::filesystem::path& file);
  // The keys of replicas, in the database that they share.
  explicit KeyStore(const DatabaseSource& shared);

  // The key is on disk at return. Throws kInvalidArgument for a bad name, no scope or a bad expiry,
  // kAlreadyExists if a key has the name, and kFailedPrecondition beyond kMaxKeys.
  CreatedKey Create(const NewKey& about);
  // Revokes the key with that id, or the unrevoked one with that name. Revoking a key again changes
  // nothing. Throws kNotFound (key_not_found).
  KeyRecord Revoke(const std::string& id_or_name);
  // All keys, revoked ones too, in the order of creation.
  std::vector<KeyRecord> List();
  // Records the use of a key; writes at most once an hour.
  void NoteUse(const KeyRecord& key, int64_t used_at);
  // A number that changes whenever another connection has changed the file. Does not read the disk.
  int64_t ChangeCount();

 private:
  std::optional<KeyRecord> Find(const std::string& id_or_name);
  void RefuseTaken(const std::string& name);
  void Insert(const KeyRecord& record);

  Database database_;
};

}  // namespace tandem::server
