#include "server/cli/data_dir.h"

#include <cctype>
#include <cstdlib>

#include "engine/base/error.h"
#include "engine/io/atomic_write.h"

namespace tandem::server {

std::filesystem::path DataDirOr(const std::string& given) {
  if (!given.empty()) return given;
  if (const char* xdg = std::getenv("XDG_DATA_HOME"); xdg != nullptr && *xdg != '\0') {
    return std::filesystem::path(xdg) / "tandem";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    return std::filesystem::path(home) / ".local" / "share" / "tandem";
  }
  return {};
}

DatabaseSource SharedDatabase(const std::string& url, const std::string& password_file) {
  DatabaseSource source;
  if (url.empty()) {
    if (password_file.empty()) return source;
    throw Error(ErrorCode::kInvalidArgument, "--database-password-file needs --database");
  }
  CheckDatabaseUrl(url);
  source.url = url;
  if (password_file.empty()) return source;
  constexpr size_t kMaxPasswordBytes = 4096;
  source.password = engine::ReadWholeFile(password_file, kMaxPasswordBytes);
  while (!source.password.empty() &&
         std::isspace(static_cast<unsigned char>(source.password.back())) != 0) {
    source.password.pop_back();
  }
  if (source.password.empty() || source.password.find('\0') != std::string::npos) {
    throw Error(ErrorCode::kInvalidArgument,
                "--database-password-file " + password_file + " must hold one password");
  }
  return source;
}

}  // namespace tandem::server
