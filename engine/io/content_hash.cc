#include "engine/io/content_hash.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/progress.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"

// The memo of a hash is one small file per set of weight files.

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMemoVersion = 2;

// A recently changed file could change again within one tick of its time stamp, unseen.
constexpr auto kSettledAfter = std::chrono::seconds(2);

using MappedFiles = std::vector<const MappedFile*>;

Json IdentityJson(const MappedFiles& mapped) {
  Json files = Json::array();
  for (const MappedFile* file : mapped) {
    const FileIdentity& identity = file->identity();
    files.push_back({{"path", std::filesystem::absolute(file->path()).string()},
                     {"device", identity.device},
                     {"inode", identity.inode},
                     {"bytes", identity.bytes},
                     {"modified_ns", identity.modified_ns}});
  }
  return files;
}

bool UnchangedSinceOpen(const MappedFiles& mapped) {
  return std::all_of(mapped.begin(), mapped.end(), [](const MappedFile* file) {
    return file->CurrentIdentity() == file->identity();
  });
}

bool SettledLongAgo(const MappedFiles& mapped) {
  const int64_t now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                             std::chrono::system_clock::now().time_since_epoch())
                             .count();
  const int64_t margin_ns = std::chrono::nanoseconds(kSettledAfter).count();
  return std::all_of(mapped.begin(), mapped.end(), [&](const MappedFile* file) {
    return file->identity().modified_ns < now_ns - margin_ns;
  });
}

std::filesystem::path MemoPath(const std::filesystem::path& memo_dir, const Json& files,
                               std::string_view part) {
  std::string paths(part);
  for (const Json& file : files) paths += file["path"].get<std::string>() + '\n';
  const std::string key = ToHex(Sha256Of(std::as_bytes(std::span(paths)))).substr(0, 32);
  return memo_dir / ("content-hash-" + key + ".json");
}

// Returns nullopt for a memo that is about other files, or of another version.
std::optional<std::string> ParseMemo(const std::filesystem::path& path, const Json& files) {
  constexpr size_t kMaxMemoBytes = size_t{1} << 20;
  const Json memo = ParseUntrustedJson(ReadWholeFile(path, kMaxMemoBytes), path.string());
  if (!memo.is_object() || memo.value("version", Json()) != kMemoVersion) return std::nullopt;
  if (memo.value("files", Json()) != files) return std::nullopt;
  std::string hash = JsonStringOr(memo, "sha256", "", path.string());
  const bool well_formed =
      hash.size() == 64 && hash.find_first_not_of("0123456789abcdef") == std::string::npos;
  return well_formed ? std::optional(std::move(hash)) : std::nullopt;
}

// Returns nullopt for a memo that is absent, broken or about other files.
std::optional<std::string> ReadMemo(const std::filesystem::path& path, const Json& files) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;
  std::optional<std::string> hash;
  const auto broken = ErrorOf([&] { hash = ParseMemo(path, files); });
  if (broken) spdlog::debug("content_hash memo={} ignored: {}", path.string(), broken->what());
  return hash;
}

void WriteMemo(const std::filesystem::path& path, const Json& files, const std::string& hash) {
  std::error_code ignored;  // WriteFileAtomically reports it
  std::filesystem::create_directories(path.parent_path(), ignored);
  const auto error = ErrorOf([&] {
    WriteFileAtomically(
        path, Json{{"version", kMemoVersion}, {"sha256", hash}, {"files", files}}.dump(2) + "\n");
  });
  // Without a memo the next start hashes again.
  if (error) spdlog::debug("content_hash memo={} not written: {}", path.string(), error->what());
}

Sha256Digest DigestOf(const WeightFile& file, const std::function<void()>& between_pieces,
                      ProgressTask& task) {
  constexpr size_t kPieceBytes = 32 << 20;  // tens of milliseconds of hashing
  Sha256 sha;
  for (size_t at = 0; at < file.bytes.size(); at += kPieceBytes) {
    if (between_pieces) between_pieces();
    const auto piece = file.bytes.subspan(at, std::min(kPieceBytes, file.bytes.size() - at));
    sha.Update(piece);
    task.Add(static_cast<int64_t>(piece.size()));
    if (file.file != nullptr) file.file->LetGo(piece);
  }
  return sha.Finish();
}

Sha256Digest KnownDigestOf(const WeightFile& file, const FileHashes& known,
                           const std::function<void()>& between_pieces, ProgressTask& task) {
  const auto found =
      file.file == nullptr ? known.end() : known.find(file.file->path().filename().string());
  return found == known.end() ? DigestOf(file, between_pieces, task) : found->second;
}

}  // namespace

std::string ContentHashOf(std::span<const WeightFile> files, const std::filesystem::path& memo_dir,
                          const std::function<void()>& between_pieces, const FileHashes& known,
                          std::string_view part) {
  MappedFiles mapped;
  for (const WeightFile& file : files) {
    if (file.file != nullptr) mapped.push_back(file.file.get());
  }
  const bool use_memo =
      mapped.size() == files.size() && !memo_dir.empty() && SettledLongAgo(mapped);
  const Json identity = use_memo ? IdentityJson(mapped) : Json();
  if (use_memo && UnchangedSinceOpen(mapped)) {
    if (auto hash = ReadMemo(MemoPath(memo_dir, identity, part), identity)) return *hash;
  }

  int64_t total_bytes = 0;
  for (const WeightFile& file : files) total_bytes += static_cast<int64_t>(file.bytes.size());
  ProgressTask task("hashing weights", "bytes", total_bytes);
  std::vector<Sha256Digest> digests;
  for (const WeightFile& file : files) {
    digests.push_back(KnownDigestOf(file, known, between_pieces, task));
  }
  std::string hash =
      ToHex(digests.size() == 1 ? digests.front() : Sha256Of(std::as_bytes(std::span(digests))));
  if (use_memo && UnchangedSinceOpen(mapped)) {
    WriteMemo(MemoPath(memo_dir, identity, part), identity, hash);
  }
  return hash;
}

}  // namespace tandem::engine
