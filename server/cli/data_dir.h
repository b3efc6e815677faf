#pragma once

#include <filesystem>
#include <string>

namespace tandem::server {

// The given data directory. Empty: $XDG_DATA_HOME/tandem or ~/.local/share/tandem; empty without
// a home.
std::filesystem::path DataDirOr(const std::string& given);

}  // namespace tandem::server
