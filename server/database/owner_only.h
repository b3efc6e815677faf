#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

namespace tandem::server {

// Removes the rights of group and others from a file or directory, and logs the change. Only warns
// about a directory that is shared by design (sticky, like /tmp) or belongs to another user. Does
// nothing if `path` does not exist. Any thread; never throws.
void RestrictToOwner(const std::filesystem::path& path);

// As RestrictToOwner, for a directory in which the server creates only names that `is_ours`
// accepts. Only warns if the directory holds another name: then other programs use it too.
void RestrictDirectoryToOwner(const std::filesystem::path& dir,
                              const std::function<bool(std::string_view name)>& is_ours);

}  // namespace tandem::server
