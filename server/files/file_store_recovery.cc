// The start of FileStore: it reconciles its directory with the table.

#include <chrono>
#include <set>
#include <system_error>
#include <vector>

#include "engine/base/log.h"
#include "server/database/owner_only.h"
#include "server/files/file_store.h"

namespace tandem::server {
namespace {

constexpr std::string_view kFilePrefix = "file-";
constexpr std::string_view kUploadSuffix = ".part";
constexpr std::string_view kTombstoneSuffix = ".deleted";
constexpr const char* kSetAsideDir = "unknown";
constexpr std::chrono::hours kInWork{1};  // the longest work of another replica on one entry

}  // namespace

// Reconciles the directory with the table after a kill or a restored backup.
void FileStore::Recover() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir_)) {
    std::string name = entry.path().filename();
    if (name.starts_with(kFilePrefix) && !MayBeInWork(name)) names.push_back(std::move(name));
  }
  std::set<std::string> without_bytes;
  {
    Query query = database_.Prepare("SELECT id FROM files");
    while (query.Next()) without_bytes.insert(query.Text());
  }
  for (const std::string& name : names) {
    if (name.ends_with(kUploadSuffix)) {
      std::error_code ignored;
      std::filesystem::remove(dir_ / name, ignored);
      spdlog::info("file_upload_removed name={}", name);
    } else if (name.ends_with(kTombstoneSuffix)) {
      const std::string id = name.substr(0, name.size() - kTombstoneSuffix.size());
      FinishRemoval(id);
      without_bytes.erase(id);
      spdlog::info("file_removal_finished id={}", id);
    } else if (without_bytes.erase(name) > 0) {
      RestrictToOwner(dir_ / name);
    } else if (blobs_->is_remote()) {
      cache_.Forget(name);  // deleted meanwhile; the store has it otherwise
    } else {
      SetAside(name);
    }
  }
  if (blobs_->is_remote()) return;
  for (const std::string& id : without_bytes) {
    if (std::filesystem::exists(PathOf(id))) continue;  // young
    spdlog::warn("file_bytes_missing id={} path={}", id, PathOf(id).string());
  }
}

bool FileStore::MayBeInWork(const std::string& name) const {
  if (!options_.shared.is_shared() || blobs_->is_remote()) return false;
  std::error_code error;
  const auto written = std::filesystem::last_write_time(dir_ / name, error);
  return error || written > std::filesystem::file_time_type::clock::now() - kInWork;
}

// Moves a file that the table does not list to files/unknown/, under an unused name.
void FileStore::SetAside(const std::string& name) {
  const std::filesystem::path unknown = dir_ / kSetAsideDir;
  std::filesystem::path to = unknown / name;
  std::error_code error;
  std::filesystem::create_directory(unknown, error);
  for (int i = 2; !error && std::filesystem::exists(to, error); ++i) {
    to = unknown / (name + "." + std::to_string(i));
  }
  if (!error) std::filesystem::rename(dir_ / name, to, error);
  if (error) {
    spdlog::error("file_unknown name={} kept_at={} reason=\"{}\"", name, (dir_ / name).string(),
                  error.message());
  } else {
    spdlog::warn("file_unknown name={} moved_to={}", name, to.string());
  }
}

}  // namespace tandem::server
