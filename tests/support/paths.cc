#include "tests/support/paths.h"

#include <cstdlib>

namespace tandem::tests {

std::filesystem::path SourceDir() { return TANDEM_SOURCE_DIR; }

std::filesystem::path ProgramPath() { return TANDEM_BINARY; }

std::filesystem::path SharedDir() {
  const char* named = std::getenv("TANDEM_SHARED_DIR");
  return named != nullptr ? std::filesystem::path(named) : SourceDir() / ".." / "shared";
}

std::string AbsentData(const std::filesystem::path& what) {
  return "absent: " + what.string() +
         ": other people's data with licences of their own, so not part of this repository; its "
         "own "
         "fixtures test the same code ($TANDEM_SHARED_DIR says where such data lies)";
}

}  // namespace tandem::tests
