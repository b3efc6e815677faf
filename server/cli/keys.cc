#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "server/cli/data_dir.h"
#include "server/cli/verbs.h"
#include "server/jobs/exit_codes.h"
#include "server/keys/key_json.h"
#include "server/keys/key_store.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

struct KeysFlags {
  std::string data_dir;
  std::string keys_db;
  std::string database;
  std::string password_file;
  bool json = false;
  std::string name;
  std::vector<std::string> scopes = {"infer"};
  std::optional<double> expires_days;
  std::string key;
};

std::filesystem::path DatabaseOf(const KeysFlags& flags) {
  if (!flags.keys_db.empty()) return flags.keys_db;
  const std::filesystem::path dir = DataDirOr(flags.data_dir);
  if (dir.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "there is no home directory: give --data-dir or --api-keys-db");
  }
  return dir / "keys.db";
}

// The database of replicas, unless their keys are in a file.
std::optional<DatabaseSource> SharedKeys(const KeysFlags& flags) {
  const DatabaseSource source = SharedDatabase(flags.database, flags.password_file);
  return source.is_shared() && flags.keys_db.empty() ? std::optional(source) : std::nullopt;
}

// Only `create` makes a database; a mistyped path must not leave one.
KeyStore OpenExisting(const KeysFlags& flags) {
  if (const auto shared = SharedKeys(flags)) return KeyStore(*shared);
  const std::filesystem::path file = DatabaseOf(flags);
  std::error_code error;
  if (!std::filesystem::exists(file, error)) {
    throw Error(ErrorCode::kNotFound, "there is no database of keys at " + file.string() +
                                          ": create a key first, or give the server's --data-dir "
                                          "or --api-keys-db");
  }
  return KeyStore(file);
}

KeyStore OpenOrCreate(const KeysFlags& flags) {
  if (const auto shared = SharedKeys(flags)) return KeyStore(*shared);
  return KeyStore(DatabaseOf(flags));
}

std::string TimeText(const std::optional<int64_t>& time) {
  if (!time) return "-";
  const auto seconds = static_cast<std::time_t>(*time);
  std::tm utc{};
  char text[32];
  if (::gmtime_r(&seconds, &utc) == nullptr ||
      std::strftime(text, sizeof text, "%Y-%m-%dT%H:%MZ", &utc) == 0) {
    return std::to_string(*time);
  }
  return text;
}

std::string StateOf(const KeyRecord& key) {
  if (key.revoked_at) return "revoked";
  return key.expires_at && *key.expires_at <= std::time(nullptr) ? "expired" : "valid";
}

void PrintTable(const std::vector<KeyRecord>& keys) {
  std::vector<std::vector<std::string>> rows = {
      {"ID", "NAME", "SCOPES", "STATE", "CREATED", "EXPIRES", "LAST USE"}};
  for (const KeyRecord& key : keys) {
    rows.push_back({key.id, key.name, ScopesText(key.scopes), StateOf(key),
                    TimeText(key.created_at), TimeText(key.expires_at),
                    TimeText(key.last_used_at)});
  }
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line += std::string(widths[i] - row[i].size() + 2, ' ');
    }
    std::printf("%s\n", line.c_str());
  }
}

int CreateKey(const KeysFlags& flags) {
  NewKey about;
  about.name = flags.name;
  for (const std::string& word : flags.scopes) {
    const std::optional<Scope> scope = ParseScope(word);
    if (!scope) {
      throw Error(ErrorCode::kInvalidArgument, std::string("a scope must be ") + kScopeRule +
                                                   ", got '" + word.substr(0, 80) + "'");
    }
    about.scopes.Add(*scope);
  }
  if (flags.expires_days) {
    constexpr double kSecondsPerDay = 24 * 3600;
    constexpr double kMaxDays = static_cast<double>(kMaxKeyLifetimeS) / kSecondsPerDay;
    const double days = *flags.expires_days;
    if (!(days > 0) || days > kMaxDays) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--expires-days must be above 0 and at most " + std::to_string(kMaxDays));
    }
    about.expires_after_s = std::max<int64_t>(1, static_cast<int64_t>(days * kSecondsPerDay));
  }
  KeyStore store = OpenOrCreate(flags);
  const CreatedKey created = store.Create(about);
  const KeyRecord& record = created.record;
  if (flags.json) {
    Json out = KeyJson(record);
    out["key"] = created.key;
    std::printf("%s\n", out.dump().c_str());
  } else {
    std::printf("%s\n", created.key.c_str());
  }
  // A key that nobody has seen must not stay valid.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    store.Revoke(record.id);
    throw Error(ErrorCode::kIo, "could not write the key to standard output; it is revoked");
  }
  std::fprintf(stderr, "tandem: created %s (%s, scopes %s); the key is shown only this once\n",
               record.name.c_str(), record.id.c_str(), ScopesText(record.scopes).c_str());
  return 0;
}

int ListKeys(const KeysFlags& flags) {
  const std::vector<KeyRecord> keys = OpenExisting(flags).List();
  if (!flags.json) {
    PrintTable(keys);
    return 0;
  }
  Json out = Json::array();
  for (const KeyRecord& key : keys) out.push_back(KeyJson(key));
  std::printf("%s\n", out.dump().c_str());
  return 0;
}

int RevokeKey(const KeysFlags& flags) {
  const KeyRecord key = OpenExisting(flags).Revoke(flags.key);
  if (flags.json) {
    std::printf("%s\n", KeyJson(key).dump().c_str());
  } else {
    std::printf("revoked %s (%s)\n", key.name.c_str(), key.id.c_str());
  }
  return 0;
}

CLI::App& AddKeysVerb(CLI::App& command, const char* name, const char* description,
                      const std::shared_ptr<KeysFlags>& flags, int (*run)(const KeysFlags&),
                      int& exit_code) {
  CLI::App& verb = *command.add_subcommand(name, description);
  verb.add_option("--data-dir", flags->data_dir, "the server's data directory, with keys.db")
      ->type_name("DIR")
      ->default_str("~/.local/share/tandem");
  verb.add_option("--api-keys-db", flags->keys_db, "the database, as given to the server")
      ->type_name("FILE")
      ->default_str("DATA_DIR/keys.db");
  verb.add_option("--database", flags->database, "the database of replicas, as given to them")
      ->type_name("URL");
  verb.add_option("--database-password-file", flags->password_file,
                  "file with its password; default: PGPASSWORD or ~/.pgpass")
      ->type_name("FILE");
  verb.add_flag("--json", flags->json, "print JSON");
  verb.callback([flags, run, &exit_code] {
    ConfigureLog("warn", LogFormat::kText);
    exit_code = run(*flags);
  });
  return verb;
}

}  // namespace

void AddKeys(CLI::App& command, int& exit_code) {
  command.require_subcommand(1);
  const auto flags = std::make_shared<KeysFlags>();
  CLI::App& create =
      AddKeysVerb(command, "create", "make a key and print it, once", flags, CreateKey, exit_code);
  create.add_option("--name", flags->name, kKeyNameRule)->required();
  create
      .add_option("--scopes", flags->scopes,
                  "infer (generation, tokenisation, models), train (files, fine-tuning), admin")
      ->delimiter(',')
      ->capture_default_str();
  create.add_option("--expires-days", flags->expires_days, "days until the key expires; 0.5 works")
      ->default_str("never");
  create.footer(
      "Prints the key to standard output. The database holds only its SHA-256 digest, so a lost\n"
      "key cannot be shown again: revoke it and create another. A running server accepts the key\n"
      "within a second.");
  AddKeysVerb(command, "list", "list the keys: names, scopes, times", flags, ListKeys, exit_code);
  CLI::App& revoke =
      AddKeysVerb(command, "revoke", "revoke a key by id or name", flags, RevokeKey, exit_code);
  revoke.add_option("key", flags->key, "id or name of the key")->required();
  revoke.footer(
      "A running server refuses the key within a second; requests that run finish. Revoked keys\n"
      "stay in the list, and their files and jobs stay visible to administrators.");
}

}  // namespace tandem::server
