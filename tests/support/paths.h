#pragma once

#include <filesystem>
#include <string>

namespace tandem::tests {

// Paths of this build and its sources. Only paths.cc is compiled with them: every other object is
// the same in every clone.
std::filesystem::path SourceDir();
std::filesystem::path ProgramPath();  // the program under test

// Real data outside this repository: $TANDEM_SHARED_DIR, or `shared` beside the sources. Tests that
// need it skip with a message if it is absent.
std::filesystem::path SharedDir();
// The message of a skipped test: the absent data and why it is not in the repository.
std::string AbsentData(const std::filesystem::path& what);

}  // namespace tandem::tests
