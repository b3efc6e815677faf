#include "server/database/schema.h"

#include <array>

namespace tandem::server {
namespace {

constexpr int kApplicationId = 0x54444d4a;  // "TDMJ"

constexpr const char* kJobs = R"(
CREATE TABLE jobs (
  seq               INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of submission
  id                TEXT NOT NULL UNIQUE,
  type              TEXT NOT NULL,
  status            TEXT NOT NULL,
  created_at        INTEGER NOT NULL,
  started_at        INTEGER,
  finished_at       INTEGER,
  progress          REAL NOT NULL,
  error_message     TEXT,
  error_code        TEXT,
  request           TEXT NOT NULL,
  result            TEXT,
  pid               INTEGER,
  pid_start_ticks   INTEGER,
  boot_id           TEXT,
  cancel_requested  INTEGER NOT NULL,
  restarts          INTEGER NOT NULL,
  events_offset     INTEGER NOT NULL
) STRICT;
CREATE INDEX jobs_by_status ON jobs (status, seq);
)";

constexpr const char* kFiles = R"(
CREATE TABLE files (
  seq         INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of upload
  id          TEXT NOT NULL UNIQUE,
  bytes       INTEGER NOT NULL,
  created_at  INTEGER NOT NULL,
  filename    TEXT NOT NULL,
  purpose     TEXT NOT NULL,
  expires_at  INTEGER
) STRICT;
CREATE INDEX files_by_purpose ON files (purpose, seq);
CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL;
)";

// Alternative names of models (/admin/aliases).
constexpr const char* kAliases = R"(
CREATE TABLE aliases (
  name    TEXT PRIMARY KEY,
  target  TEXT NOT NULL
) STRICT;
)";

// The client number of the API key that made a record (ApiKeys::ClientOf); NULL: nobody's, visible
// to every key.
constexpr const char* kOwners = R"(
ALTER TABLE jobs ADD COLUMN owner INTEGER;
ALTER TABLE files ADD COLUMN owner INTEGER;
)";

// `body` is the response object of the API, `input` an array of the items before its answer.
// `events` has one event per line; it is empty unless the response ran in the background.
constexpr const char* kResponses = R"(
CREATE TABLE responses (
  seq          INTEGER PRIMARY KEY AUTOINCREMENT,
  id           TEXT NOT NULL UNIQUE,
  owner        INTEGER,
  created_at   INTEGER NOT NULL,
  is_finished  INTEGER NOT NULL,
  body         TEXT NOT NULL,
  input        TEXT NOT NULL,
  events       TEXT NOT NULL,
  bytes        INTEGER NOT NULL  -- of the three texts
) STRICT;
CREATE INDEX responses_by_age ON responses (created_at);
CREATE INDEX responses_by_bytes ON responses (bytes);
CREATE INDEX unfinished_responses ON responses (id) WHERE is_finished = 0;
)";

// /v1/batches. `record` is JSON; server/batches writes it.
constexpr const char* kBatches = R"(
CREATE TABLE batches (
  seq          INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of creation
  id           TEXT NOT NULL UNIQUE,
  owner        INTEGER,
  is_finished  INTEGER NOT NULL,
  record       TEXT NOT NULL
) STRICT;
CREATE INDEX batches_unfinished ON batches (owner, seq) WHERE is_finished = 0;
)";

// `replica` is the server that does the work, if no child does it (kReplicaIsGone). Adapters are
// those loaded by /admin/adapters on any replica; `fingerprint` covers their content.
constexpr const char* kReplicas = R"(
CREATE TABLE leases (
  name        TEXT PRIMARY KEY,
  owner       TEXT NOT NULL,
  epoch       INTEGER NOT NULL,  -- grows with every new owner
  expires_at  INTEGER NOT NULL   -- milliseconds, by the clock of the database
) STRICT;
ALTER TABLE jobs ADD COLUMN replica TEXT;
ALTER TABLE responses ADD COLUMN replica TEXT;
ALTER TABLE batches ADD COLUMN replica TEXT;
CREATE TABLE adapters (
  name         TEXT PRIMARY KEY,
  base         TEXT NOT NULL,
  path         TEXT NOT NULL,
  fingerprint  TEXT NOT NULL,
  created_at   INTEGER NOT NULL
) STRICT;
)";

// For replicas with an object store (--blob-store). `blob` names the object of a file. `spec` is
// the text for a job's process, with a mark in place of the data directory (server/jobs). An entry
// of blob_garbage is an object without a file; `replica` uploads it, or is NULL.
constexpr const char* kBlobs = R"(
ALTER TABLE files ADD COLUMN blob TEXT;
ALTER TABLE files ADD COLUMN sha256 TEXT;
ALTER TABLE jobs ADD COLUMN spec TEXT;
ALTER TABLE jobs ADD COLUMN model_deleted INTEGER;
CREATE TABLE blob_garbage (
  name     TEXT PRIMARY KEY,
  replica  TEXT
) STRICT;
)";

constexpr std::array kServerSteps = {kJobs,      kFiles,   kAliases,  kOwners,
                                     kResponses, kBatches, kReplicas, kBlobs};

}  // namespace

const Schema& ServerSchema() {
  static constexpr Schema kSchema{"server", kApplicationId, kServerSteps};
  return kSchema;
}

}  // namespace tandem::server
