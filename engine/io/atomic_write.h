#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace tandem::engine {

// Nothing half-written is ever visible under its final name.

// Writes `text` to a temporary name beside `path`, fsyncs, renames, fsyncs the directory.
void WriteFileAtomically(const std::filesystem::path& path, std::string_view text);

// Calls `fill` with a fresh temporary directory beside `final_dir` (named `<final>.tmp-<random>`),
// then fsyncs every file in it, the directory, renames it to `final_dir` and fsyncs the parent. On
// any exception the temporary directory is removed and the exception goes on. Throws kAlreadyExists
// if `final_dir` exists.
void PublishDirectory(const std::filesystem::path& final_dir,
                      const std::function<void(const std::filesystem::path& temporary)>& fill);

// Removes leftovers `<name>.tmp-*` of killed writers in `parent`.
void RemoveStaleTemporaries(const std::filesystem::path& parent);

// Reads a whole file; throws kNotFound / kIo, or kDataLoss if it is larger than `max_bytes`.
std::string ReadWholeFile(const std::filesystem::path& path, size_t max_bytes);

}  // namespace tandem::engine
