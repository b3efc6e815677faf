#include "server/wire/version.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "server/cli/verbs.h"

namespace tandem::server {

std::string VersionLine() {
  return "tandem " + VersionNumber() + " (commit " + VersionCommit() + ", " + VersionBuild() + ")";
}

void AddVersion(CLI::App& command, int&) {
  command.callback([] { std::printf("%s\n", VersionLine().c_str()); });
}

}  // namespace tandem::server
