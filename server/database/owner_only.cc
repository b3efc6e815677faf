#include "server/database/owner_only.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

#include "engine/base/log.h"

namespace tandem::server {
namespace {

constexpr mode_t kOthersRights = S_IRWXG | S_IRWXO;
constexpr mode_t kPermissionBits = 07777;

std::string Octal(mode_t mode) {
  char text[8];
  std::snprintf(text, sizeof text, "%04o", static_cast<unsigned>(mode & kPermissionBits));
  return text;
}

void WarnOfRights(const std::filesystem::path& path, mode_t mode, const std::string& why) {
  spdlog::warn("permissions_too_wide path={} mode={} reason=\"{}\"", path.string(), Octal(mode),
               why);
}

}  // namespace

void RestrictToOwner(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || (status.st_mode & kOthersRights) == 0) return;
  const mode_t wanted = status.st_mode & kPermissionBits & ~kOthersRights;
  std::string why;
  if ((status.st_mode & S_ISVTX) != 0) {
    why = "the directory is shared (sticky bit)";
  } else if (::chmod(path.c_str(), wanted) != 0) {
    why = std::generic_category().message(errno);
  }
  if (why.empty()) {
    spdlog::info("permissions_corrected path={} from={} to={}", path.string(),
                 Octal(status.st_mode), Octal(wanted));
  } else {
    WarnOfRights(path, status.st_mode, why);
  }
}

void RestrictDirectoryToOwner(const std::filesystem::path& dir,
                              const std::function<bool(std::string_view name)>& is_ours) {
  struct stat status {};
  if (::stat(dir.c_str(), &status) != 0 || (status.st_mode & kOthersRights) == 0) return;
  std::error_code error;
  std::filesystem::directory_iterator entry(dir, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (is_ours(name)) continue;
    return WarnOfRights(dir, status.st_mode, "other programs use it: it holds " + name);
  }
  if (error) return WarnOfRights(dir, status.st_mode, error.message());
  RestrictToOwner(dir);
}

}  // namespace tandem::server
