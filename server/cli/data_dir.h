#pragma once

#include <filesystem>
#include <string>

#include "server/database/database_source.h"

namespace tandem::server {

// The given data directory. Empty: $XDG_DATA_HOME/tandem or ~/.local/share/tandem; empty without
// a home.
std::filesystem::path DataDirOr(const std::string& given);

// The database of --database and --database-password-file. Throws kInvalidArgument for an unusable
// URL or file.
DatabaseSource SharedDatabase(const std::string& url, const std::string& password_file);

}  // namespace tandem::server
