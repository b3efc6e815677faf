#include "tests/support/paths.h"

#include <cstdlib>

namespace tandem::tests {

std::filesystem::path SourceDir() { return TANDEM_SOURCE_DIR; }

std::filesystem::path ProgramPath() { return TANDEM_BINARY; }

std::filesystem::path SharedDir() {
  const char* named = std::getenv("TANDEM_SHARED_DIR");
  return named != nullptr ? std::filesystem::path(named) : SourceDir() / ".." / "shared";
}

}  // namespace tandem::tests
