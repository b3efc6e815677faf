#include "server/handlers/version.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "server/cli/verbs.h"

namespace tandem::server {

void AddVersion(CLI::App& command, int&) {
  command.callback([] {
    std::printf("tandem %s (commit %s, %s)\n", VersionNumber().c_str(), VersionCommit().c_str(),
                VersionBuild().c_str());
  });
}

}  // namespace tandem::server
