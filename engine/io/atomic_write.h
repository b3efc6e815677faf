#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace tandem::engine {

// Nothing half-written is ever visible under its final name.

// Writes `text` to a temporary name beside `path`, fsyncs, renames, fsyncs the directory.
void WriteFileAtomically(const std::filesystem::path& path, std::string_view text);

enum class IfThere { kRefuse, kReplace };

// Calls `fill` with a fresh temporary directory beside `final_dir` (named `<final>.tmp-<random>`),
// then fsyncs every file in it, the directory, renames it to `final_dir` and fsyncs the parent. On
// any exception the temporary directory is removed and the exception goes on. Where `final_dir`
// exists, throws kAlreadyExists, or puts the new directory in its place in one step, where the file
// system can, and removes the old one.
void PublishDirectory(const std::filesystem::path& final_dir,
                      const std::function<void(const std::filesystem::path& temporary)>& fill,
                      IfThere if_there = IfThere::kRefuse);

// Publishes what is at `from`, a file or directory that the caller made on the same file system:
// fsyncs it and all in it, gives it the name `to` and fsyncs the directory of that. With kReplace
// what was at `to` is at `from` afterwards. Throws as PublishDirectory.
void PublishPath(const std::filesystem::path& from, const std::filesystem::path& to,
                 IfThere if_there);

// Removes leftovers `<name>.tmp-*` of killed writers in `parent`; of this name, if it is given.
void RemoveStaleTemporaries(const std::filesystem::path& parent, const std::string& name = "");

// Reads a whole file; throws kNotFound / kIo, or kDataLoss if it is larger than `max_bytes`.
std::string ReadWholeFile(const std::filesystem::path& path, size_t max_bytes);

}  // namespace tandem::engine
