#pragma once

#include <filesystem>

namespace tandem {

// A new file name survives a power loss only after its directory was synced. Both functions throw
// kIo. Any thread.

// fsyncs the directory, which makes its names durable.
void SyncDirectory(const std::filesystem::path& dir);

// Creates the missing directories of `path` and makes their names durable.
void MakeDirectories(const std::filesystem::path& path);

}  // namespace tandem
