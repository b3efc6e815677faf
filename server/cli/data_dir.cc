#include "server/cli/data_dir.h"

#include <cstdlib>

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

}  // namespace tandem::server
