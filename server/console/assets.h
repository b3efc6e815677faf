#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::server {

// A file of the console, ready to be sent.
struct ConsoleAsset {
  std::string content_type;
  std::string bytes;
  std::string gzip;  // `bytes` in gzip's format
  std::string etag;  // with its quotes; changes with the bytes
};

// Names of all embedded files, such as "lib/dom.js".
std::vector<std::string_view> ConsoleFileNames();

// The embedded file of that name, or null. Compressed at the first call; thread-safe.
const ConsoleAsset* FindConsoleAsset(std::string_view name);

// The file below `directory`, for development. Nullopt: there is none, or `name` is not like a name
// of the console's files. Throws kIo.
std::optional<ConsoleAsset> ReadConsoleAsset(const std::filesystem::path& directory,
                                             std::string_view name);

}  // namespace tandem::server
