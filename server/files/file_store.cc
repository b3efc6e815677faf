#include "server/files/file_store.h"

#include <fcntl.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <set>
#include <system_error>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/durable_dirs.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/unix_time.h"
#include "server/database/owner_only.h"

namespace tandem::server {
namespace {

constexpr const char* kColumns =
    "id, bytes, created_at, filename, purpose, expires_at, owner, blob, sha256";
constexpr std::string_view kIdPrefix = "file-";
constexpr std::string_view kTemporarySuffix = ".part";
constexpr std::string_view kDeletedSuffix = ".deleted";
constexpr const char* kUnknownDir = "unknown";
constexpr size_t kMaxNameBytes = 255;
constexpr int kThreads = 2;
constexpr int kRemoteThreads = 8;  // which wait for an object store
// Each connection has at most one task here, so connection limits bound the queue.
constexpr size_t kMaxTasks = 1 << 20;

std::filesystem::path MakeFilesDir(const std::filesystem::path& data_dir, bool is_remote) {
  std::filesystem::path dir = data_dir / (is_remote ? "blobs" : "files");
  std::error_code error;
  if (std::filesystem::exists(dir, error)) {
    RestrictDirectoryToOwner(dir, [](std::string_view name) {
      return name.starts_with(kIdPrefix) || name == kUnknownDir;
    });
    return dir;
  }
  MakeDirectories(dir);
  std::filesystem::permissions(dir, std::filesystem::perms::owner_all, error);
  if (error) {
    throw Error(ErrorCode::kIo, "could not create " + dir.string() + ": " + error.message());
  }
  return dir;
}

StoredFile ReadFile(Query& row) {
  StoredFile file;
  file.id = row.Text();
  file.bytes = row.Int();
  file.created_at = row.Int();
  file.filename = row.Text();
  file.purpose = row.Text();
  file.expires_at = row.IntOrNull();
  file.owner = row.IntOrNull();
  file.blob = row.TextOrNull().value_or("");
  file.sha256 = row.TextOrNull().value_or("");
  return file;
}

// Borrows; an empty text is NULL.
std::optional<std::string_view> TextOrNull(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional<std::string_view>(text);
}

// Length in bytes of the UTF-8 character at the start of `text`; 0 if invalid.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t n = first >= 0xF0 && first <= 0xF4   ? 4
                   : first >= 0xE0 && first <= 0xEF ? 3
                   : first >= 0xC2 && first <= 0xDF ? 2
                                                    : 0;
  if (n == 0 || text.size() < n) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and code points beyond Unicode.
  if ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) > 0x9F) ||
      (first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) > 0x8F)) {
    return 0;
  }
  return n;
}

bool IsControl(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;
}

}  // namespace

std::optional<std::string> SafeFileName(std::string_view name) {
  if (const size_t slash = name.find_last_of("/\\"); slash != std::string_view::npos) {
    name.remove_prefix(slash + 1);
  }
  std::string safe;
  while (!name.empty()) {
    const size_t n = CharacterBytes(name);
    std::string_view character = name.substr(0, std::max<size_t>(n, 1));
    name.remove_prefix(character.size());
    if (n == 0) character = "\xEF\xBF\xBD";
    if (IsControl(character)) continue;
    if (safe.size() + character.size() > kMaxNameBytes) break;
    safe += character;
  }
  if (safe.empty() || safe == "." || safe == "..") return std::nullopt;
  return safe;
}

std::string FileStore::NewId() {
  unsigned char bytes[12];
  TANDEM_CHECK(::getrandom(bytes, sizeof bytes, 0) == static_cast<ssize_t>(sizeof bytes));
  std::string id(kIdPrefix);
  for (const unsigned char byte : bytes) {
    id += "0123456789abcdef"[byte >> 4];
    id += "0123456789abcdef"[byte & 15];
  }
  return id;
}

FileStore::FileStore(Options options)
    : options_(std::move(options)),
      blobs_(options_.blobs ? options_.blobs : SharedDirectory()),
      dir_(MakeFilesDir(options_.data_dir, blobs_->is_remote())),
      cache_(dir_, options_.cache_bytes),
      database_(InDataDir(options_.shared, options_.data_dir)),
      garbage_(database_, options_.replica),
      threads_({.n_threads = blobs_->is_remote() ? kRemoteThreads : kThreads,
                .max_queued = kMaxTasks,
                .name = "tandem-file"}) {
  TANDEM_CHECK(!blobs_->is_remote() || !options_.replica.empty());
  const std::lock_guard lock(mutex_);
  Recover();
  RemoveExpired();
}

int64_t FileStore::Now() const {
  if (options_.now) return options_.now();
  return UnixNow();
}

std::filesystem::path FileStore::TombstoneOf(const std::string& id) const {
  return dir_ / (id + std::string(kDeletedSuffix));
}

TemporaryFile FileStore::BeginFile() {
  return TemporaryFile(dir_ / (NewId() + std::string(kTemporarySuffix)));
}

void FileStore::Insert(const StoredFile& file) {
  Query query = database_.Prepare("INSERT INTO files (" + std::string(kColumns) +
                                  ") VALUES (?,?,?,?,?,?,?,?,?)");
  query.Bind(std::string_view(file.id)).Bind(file.bytes).Bind(file.created_at);
  query.Bind(std::string_view(file.filename)).Bind(std::string_view(file.purpose));
  query.Bind(file.expires_at).Bind(file.owner);
  query.Bind(TextOrNull(file.blob)).Bind(TextOrNull(file.sha256));
  query.Next();
}

std::optional<StoredFile> FileStore::FindLocked(const std::string& id) {
  Query query = database_.Prepare("SELECT " + std::string(kColumns) +
                                  " FROM files WHERE id = ? AND (expires_at IS NULL OR "
                                  "expires_at > ?)");
  query.Bind(std::string_view(id)).Bind(Now());
  if (tombstones_.contains(id) || !query.Next()) return std::nullopt;
  return ReadFile(query);
}

StoredFile FileStore::Require(const std::string& id) {
  RemoveExpired();
  std::optional<StoredFile> file = FindLocked(id);
  if (!file) {
    throw Error(ErrorCode::kNotFound, "there is no file '" + id.substr(0, 80) + "'")
        .WithParam("id")
        .WithReason("file_not_found");
  }
  return std::move(*file);
}

std::optional<StoredFile> FileStore::Find(const std::string& id) {
  const std::lock_guard lock(mutex_);
  RemoveExpired();
  return FindLocked(id);
}

FilePage FileStore::List(const FileFilter& filter) {
  const std::lock_guard lock(mutex_);
  RemoveExpired();
  int64_t beyond = filter.oldest_first ? 0 : std::numeric_limits<int64_t>::max();
  if (!filter.after.empty()) {
    Query query = database_.Prepare(
        "SELECT seq FROM files WHERE id = ?1 AND (?2 IS NULL OR owner IS NULL OR owner = ?2)");
    query.Bind(std::string_view(filter.after)).Bind(filter.viewer);
    if (!query.Next()) return {};
    beyond = query.Int();
  }
  const std::string order = filter.oldest_first ? "seq > ?1 AND " : "seq < ?1 AND ";
  Query query = database_.Prepare(
      "SELECT " + std::string(kColumns) + " FROM files WHERE " + order +
      "(?2 IS NULL OR purpose = ?2) AND (expires_at IS NULL OR expires_at > ?3) AND "
      "(?5 IS NULL OR owner IS NULL OR owner = ?5) ORDER BY seq " +
      (filter.oldest_first ? "ASC" : "DESC") + " LIMIT ?4");
  query.Bind(beyond);
  query.Bind(std::optional<std::string_view>(filter.purpose));
  // One extra row tells whether more exist.
  query.Bind(Now()).Bind(static_cast<int64_t>(filter.limit + tombstones_.size()) + 1);
  query.Bind(filter.viewer);
  FilePage page;
  while (query.Next()) {
    StoredFile file = ReadFile(query);
    if (tombstones_.contains(file.id)) continue;
    if (page.files.size() == filter.limit) {
      page.has_more = true;
      break;
    }
    page.files.push_back(std::move(file));
  }
  return page;
}

// The rename decides: afterwards the file counts as deleted, whatever the database says. A file
// without bytes has nothing to rename.
std::error_code FileStore::Remove(const std::string& id) {
  if (blobs_->is_remote()) {
    RemoveRow(id);
    return {};
  }
  std::error_code error;
  std::filesystem::rename(PathOf(id), TombstoneOf(id), error);
  if (error && error != std::errc::no_such_file_or_directory) return error;
  SyncDirectory(dir_);
  FinishRemoval(id);
  return {};
}

// Removes the row, then the tombstone. If the database has no space, removes the bytes first; an
// empty tombstone then records the deletion for the next start.
void FileStore::FinishRemoval(const std::string& id) {
  const std::filesystem::path tombstone = TombstoneOf(id);
  std::error_code ignored;
  if (!ForgetRow(id)) {
    std::filesystem::remove(tombstone, ignored);
    const UniqueFd empty(::open(tombstone.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    if (!ForgetRow(id)) {
      tombstones_.insert(id);
      return;
    }
  }
  std::filesystem::remove(tombstone, ignored);
  tombstones_.erase(id);
}

// Returns false if the database refuses, for example on a full disk.
bool FileStore::ForgetRow(const std::string& id) {
  const auto error = ErrorOf([&] {
    Query query = database_.Prepare("DELETE FROM files WHERE id = ?");
    query.Bind(std::string_view(id));
    query.Next();
  });
  if (error) spdlog::warn("file_row_kept id={} reason=\"{}\"", id, error->what());
  return !error;
}

// Keeps other replicas from deleting files. Null without replicas: the lock of this store does, and
// an open transaction would stop the writes of `use` in a SQLite file.
std::unique_ptr<FileStore::Hold> FileStore::HoldFiles() {
  if (!options_.shared.is_shared() && !blobs_->is_remote()) return nullptr;
  return std::make_unique<Hold>(*this);
}

void FileStore::Delete(const std::string& id) {
  DeleteRow(id);
  CollectGarbage();
}

void FileStore::DeleteRow(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto transaction = HoldFiles();
  // The database may have space again.
  for (const std::string& kept : std::set<std::string>(tombstones_)) FinishRemoval(kept);
  Require(id);
  if (options_.is_in_use && options_.is_in_use(id)) {
    throw Error(ErrorCode::kAlreadyExists,
                "file '" + id + "' is in use by an unfinished job: cancel the job first")
        .WithParam("id")
        .WithReason("in_use");
  }
  if (const std::error_code error = Remove(id)) {
    throw Error(ErrorCode::kIo, "could not delete " + PathOf(id).string() + ": " + error.message());
  }
  if (transaction) transaction->Commit();
  spdlog::info("file_deleted id={}", id);
}

// Expired files are invisible at once. Their bytes are removed at the next request for files, or
// when no job needs them any more.
void FileStore::RemoveExpired() {
  const int64_t now = Now();
  if (now < next_expiry_) return;
  std::vector<std::string> expired;
  next_expiry_ = std::numeric_limits<int64_t>::max();
  {
    Query query = database_.Prepare(
        "SELECT id, expires_at FROM files WHERE expires_at IS NOT NULL ORDER BY expires_at");
    while (query.Next()) {
      std::string id = query.Text();
      const int64_t expires_at = query.Int();
      if (expires_at > now) {
        next_expiry_ = std::min(next_expiry_, expires_at);
        break;
      }
      expired.push_back(std::move(id));
    }
  }
  for (const std::string& id : expired) {
    if (options_.is_in_use && options_.is_in_use(id)) {
      next_expiry_ = now;  // retry at the next request
      continue;
    }
    if (const std::error_code error = Remove(id)) {
      spdlog::warn("file_not_removed id={} reason=\"{}\"", id, error.message());
      next_expiry_ = now;  // retry at the next request
      continue;
    }
    spdlog::info("file_expired id={}", id);
  }
}

void FileStore::Use(const std::vector<std::string>& ids, const std::function<void()>& use) {
  const std::lock_guard lock(mutex_);
  const auto transaction = HoldFiles();
  for (const std::string& id : ids) Require(id);
  use();
  if (transaction) transaction->Commit();
}

FileStore::Opened FileStore::Open(const std::string& id) {
  Opened opened;
  const LocalBlob blob = Local(id);
  const std::lock_guard lock(mutex_);
  opened.file = Require(id);
  const std::filesystem::path& path = blob.path;
  opened.fd = UniqueFd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened.fd) {
    throw Error(ErrorCode::kIo,
                "could not open " + path.string() + ": " + std::generic_category().message(errno));
  }
  return opened;
}

std::optional<std::filesystem::space_info> FileStore::DiskSpace() const {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(dir_, error);
  return error ? std::nullopt : std::optional(space);
}

}  // namespace tandem::server
