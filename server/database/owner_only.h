#pragma once

#include <filesystem>

namespace tandem::server {

// Removes the rights of group and others from a file or directory, and logs the change. Only warns
// about a directory that is shared by design (sticky, like /tmp) or belongs to another user. Does
// nothing if `path` does not exist. Any thread; never throws.
void RestrictToOwner(const std::filesystem::path& path);

}  // namespace tandem::server
