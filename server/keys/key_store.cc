#include "server/keys/key_store.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <system_error>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/durable_dirs.h"
#include "engine/base/error.h"
#include "engine/base/unix_time.h"

namespace tandem::server {
namespace {

constexpr int kApplicationId = 0x54444d4b;  // "TDMK"

constexpr const char* kKeys = R"(
CREATE TABLE api_keys (
  seq           INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of creation
  id            TEXT NOT NULL UNIQUE,
  name          TEXT NOT NULL,
  digest        TEXT NOT NULL UNIQUE,  -- SHA-256 of the key, hexadecimal
  scopes        TEXT NOT NULL,
  created_at    INTEGER NOT NULL,
  expires_at    INTEGER,
  revoked_at    INTEGER,
  last_used_at  INTEGER
) STRICT;
CREATE UNIQUE INDEX api_keys_by_name ON api_keys (name) WHERE revoked_at IS NULL;
)";
constexpr std::array kSteps = {kKeys};

constexpr const char* kColumns =
    "id, name, digest, scopes, created_at, expires_at, revoked_at, last_used_at";
constexpr size_t kMaxNameBytes = 64;
constexpr size_t kIdBytes = 12;
constexpr size_t kKeyBytes = 32;

struct ScopeName {
  Scope scope;
  const char* name;
};
constexpr ScopeName kScopeNames[] = {
    {Scope::kInfer, "infer"}, {Scope::kTrain, "train"}, {Scope::kAdmin, "admin"}};

std::string HexOf(const unsigned char* bytes, size_t n) {
  std::string text;
  text.reserve(2 * n);
  for (size_t i = 0; i < n; ++i) {
    text += "0123456789abcdef"[bytes[i] >> 4];
    text += "0123456789abcdef"[bytes[i] & 15];
  }
  return text;
}

template <size_t n>
std::string RandomHex() {
  std::array<unsigned char, n> bytes;
  TANDEM_CHECK(::getrandom(bytes.data(), n, 0) == static_cast<ssize_t>(n));
  return HexOf(bytes.data(), n);
}

std::string TextOf(const KeyDigest& digest) {
  std::array<unsigned char, sizeof(KeyDigest)> bytes;
  std::memcpy(bytes.data(), digest.data(), bytes.size());
  return HexOf(bytes.data(), bytes.size());
}

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

KeyDigest ParseDigest(const std::string& text, const std::string& id) {
  std::array<unsigned char, sizeof(KeyDigest)> bytes{};
  bool is_valid = text.size() == 2 * bytes.size();
  for (size_t i = 0; is_valid && i < bytes.size(); ++i) {
    const int high = HexValue(text[2 * i]);
    const int low = HexValue(text[2 * i + 1]);
    is_valid = high >= 0 && low >= 0;
    bytes[i] = static_cast<unsigned char>((high << 4 | low) & 0xFF);
  }
  if (!is_valid) {
    throw Error(ErrorCode::kDataLoss, "API key " + id + " has no valid digest in the database");
  }
  KeyDigest digest;
  std::memcpy(digest.data(), bytes.data(), bytes.size());
  return digest;
}

Scopes ParseScopes(std::string_view text, const std::string& id) {
  Scopes scopes;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::optional<Scope> scope = ParseScope(text.substr(0, comma));
    if (!scope) {
      throw Error(ErrorCode::kDataLoss,
                  "API key " + id + " has a scope that this program does not know");
    }
    scopes.Add(*scope);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return scopes;
}

KeyRecord ReadKey(Query& row) {
  KeyRecord key;
  key.id = row.Text();
  key.name = row.Text();
  key.digest = ParseDigest(row.Text(), key.id);
  key.scopes = ParseScopes(row.Text(), key.id);
  key.created_at = row.Int();
  key.expires_at = row.IntOrNull();
  key.revoked_at = row.IntOrNull();
  key.last_used_at = row.IntOrNull();
  return key;
}

std::filesystem::path InItsDirectory(const std::filesystem::path& file) {
  const std::filesystem::path dir = std::filesystem::absolute(file).parent_path();
  std::error_code error;
  if (std::filesystem::exists(dir, error)) return file;
  MakeDirectories(dir);
  std::filesystem::permissions(dir, std::filesystem::perms::owner_all, error);
  if (error) {
    throw Error(ErrorCode::kIo, "could not create " + dir.string() + ": " + error.message());
  }
  return file;
}

void CheckNewKey(const NewKey& about) {
  if (!IsKeyName(about.name)) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("the name of a key must be ") + kKeyNameRule)
        .WithParam("name");
  }
  if (about.scopes.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("a key needs at least one scope: ") + kScopeRule)
        .WithParam("scopes");
  }
  if (about.expires_after_s &&
      (*about.expires_after_s < 1 || *about.expires_after_s > kMaxKeyLifetimeS)) {
    throw Error(ErrorCode::kInvalidArgument,
                "the lifetime of a key must be in [1, " + std::to_string(kMaxKeyLifetimeS) +
                    "] seconds, got " + std::to_string(*about.expires_after_s))
        .WithParam("expires_after_s");
  }
}

}  // namespace

bool IsKeyName(std::string_view name) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '@' || c == '-';
  };
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), is_allowed);
}

std::string ScopesText(Scopes scopes) {
  std::string text;
  for (const ScopeName& one : kScopeNames) {
    if (scopes.Has(one.scope)) text += (text.empty() ? "" : ",") + std::string(one.name);
  }
  return text;
}

std::optional<Scope> ParseScope(std::string_view word) {
  for (const ScopeName& one : kScopeNames) {
    if (word == one.name) return one.scope;
  }
  return std::nullopt;
}

KeyStore::KeyStore(const std::filesystem::path& file)
    : database_(InItsDirectory(file), Schema{"keys", kApplicationId, kSteps}) {}

KeyStore::KeyStore(const DatabaseSource& shared)
    : database_(shared, Schema{"keys", kApplicationId, kSteps}) {}

// REQUIRES for both: a transaction.
void KeyStore::RefuseTaken(const std::string& name) {
  Query same = database_.Prepare(
      "SELECT count(*), count(*) FILTER (WHERE name = ?) FROM api_keys WHERE revoked_at IS NULL");
  same.Bind(std::string_view(name));
  same.Next();
  if (same.Int() >= static_cast<int64_t>(kMaxKeys)) {
    throw Error(ErrorCode::kFailedPrecondition,
                "the database has " + std::to_string(kMaxKeys) +
                    " keys, which is the limit: revoke unused ones");
  }
  if (same.Int() > 0) {
    throw Error(ErrorCode::kAlreadyExists,
                "a key has the name '" + name + "': revoke it, or choose another name")
        .WithParam("name");
  }
}

void KeyStore::Insert(const KeyRecord& record) {
  Query query = database_.Prepare(
      "INSERT INTO api_keys (id, name, digest, scopes, created_at, expires_at) "
      "VALUES (?,?,?,?,?,?)");
  const std::string digest = TextOf(record.digest);
  const std::string scopes = ScopesText(record.scopes);
  query.Bind(std::string_view(record.id)).Bind(std::string_view(record.name));
  query.Bind(std::string_view(digest)).Bind(std::string_view(scopes));
  query.Bind(record.created_at).Bind(record.expires_at);
  query.Next();
}

// One transaction, so that two processes cannot both take the last place or the same name.
CreatedKey KeyStore::Create(const NewKey& about) {
  CheckNewKey(about);
  CreatedKey created;
  created.key = "tk-" + RandomHex<kKeyBytes>();
  KeyRecord& record = created.record;
  record.id = "key-" + RandomHex<kIdBytes>();
  record.name = about.name;
  record.scopes = about.scopes;
  record.digest = DigestOfKey(created.key);
  record.created_at = UnixNow();
  if (about.expires_after_s) record.expires_at = record.created_at + *about.expires_after_s;

  Transaction transaction(database_, "api_keys");
  RefuseTaken(record.name);
  Insert(record);
  transaction.Commit();
  return created;
}

std::optional<KeyRecord> KeyStore::Find(const std::string& id_or_name) {
  Query query =
      database_.Prepare("SELECT " + std::string(kColumns) +
                        " FROM api_keys WHERE id = ?1 OR (name = ?1 AND revoked_at IS NULL) "
                        "ORDER BY id = ?1 DESC LIMIT 1");
  query.Bind(std::string_view(id_or_name));
  if (!query.Next()) return std::nullopt;
  return ReadKey(query);
}

KeyRecord KeyStore::Revoke(const std::string& id_or_name) {
  std::optional<KeyRecord> key = Find(id_or_name);
  if (!key) {
    throw Error(ErrorCode::kNotFound, "there is no API key '" + id_or_name.substr(0, 80) + "'")
        .WithParam("id")
        .WithReason("key_not_found");
  }
  if (key->revoked_at) return *key;
  key->revoked_at = UnixNow();
  Query query =
      database_.Prepare("UPDATE api_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL");
  query.Bind(*key->revoked_at).Bind(std::string_view(key->id));
  query.Next();
  return *key;
}

std::vector<KeyRecord> KeyStore::List() {
  Query query =
      database_.Prepare("SELECT " + std::string(kColumns) + " FROM api_keys ORDER BY seq");
  std::vector<KeyRecord> keys;
  while (query.Next()) keys.push_back(ReadKey(query));
  return keys;
}

void KeyStore::NoteUse(const KeyRecord& key, int64_t used_at) {
  const int64_t hour = used_at - used_at % kUseGranularityS;
  if (key.last_used_at && *key.last_used_at >= hour) return;
  Query query = database_.Prepare("UPDATE api_keys SET last_used_at = ? WHERE id = ?");
  query.Bind(hour).Bind(std::string_view(key.id));
  query.Next();
}

int64_t KeyStore::ChangeCount() { return database_.ChangeCount("api_keys"); }

}  // namespace tandem::server
