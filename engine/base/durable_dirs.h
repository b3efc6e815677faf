#pragma once

#include <filesystem>

namespace tandem {

// A new name is safe from a power loss only when its directory has been synced, however well the
// file itself has been. Both throw kIo; any thread.

// fsyncs the directory: the names in it last from now on.
void SyncDirectory(const std::filesystem::path& dir);

// Creates the directories of `path` that are missing, and syncs the names of those.
void MakeDirectories(const std::filesystem::path& path);

}  // namespace tandem
