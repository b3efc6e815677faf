#pragma once

#include <filesystem>

namespace tandem::server {

// Takes the rights of group and others from a file or directory and logs the change. Only warns
// about a directory that is shared by design (sticky, as /tmp) or belongs to another user. Does
// nothing when nothing is at `path`. Any thread; never throws.
void RestrictToOwner(const std::filesystem::path& path);

}  // namespace tandem::server
