#pragma once

#include <filesystem>
#include <string>

namespace tandem::tests {

// Where this build and its sources lie. Only paths.cc is compiled with them, so that every other
// object is the same in every clone.
std::filesystem::path SourceDir();
std::filesystem::path ProgramPath();  // the program under test

// Real data that is not part of this repository: $TANDEM_SHARED_DIR, or `shared` beside the
// sources. Tests that need it skip where it is absent, and say so.
std::filesystem::path SharedDir();
// Why such a test skips: what is absent, and why it is not here.
std::string AbsentData(const std::filesystem::path& what);

}  // namespace tandem::tests
