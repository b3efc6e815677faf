#pragma once

#include <string>

namespace tandem::server {

// "0.1.0"; the commit at configuration time ("unknown" outside a checkout); the build type.
std::string VersionNumber();
std::string VersionCommit();
std::string VersionBuild();

}  // namespace tandem::server
