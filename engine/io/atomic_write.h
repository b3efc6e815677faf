#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace tandem::engine {

// A reader never sees half-written content under a final name, also after a kill or a power cut.

// Writes `text` to a temporary name in the same directory, fsyncs it, renames it to `path` and
// fsyncs the directory.
void WriteFileAtomically(const std::filesystem::path& path, std::string_view text);

enum class IfThere { kRefuse, kReplace };

// Calls `fill` with a fresh directory `<final>.tmp-<random>` beside `final_dir`. Then fsyncs every
// file in it and the directory, renames it to `final_dir` and fsyncs the parent. On an exception
// the temporary directory is removed and the exception is rethrown. When `final_dir` exists,
// kRefuse throws kAlreadyExists. kReplace exchanges the two directories (atomically where the file
// system can) and removes the old one.
void PublishDirectory(const std::filesystem::path& final_dir,
                      const std::function<void(const std::filesystem::path& temporary)>& fill,
                      IfThere if_there = IfThere::kRefuse);

// Publishes the caller's file or directory `from`: fsyncs it and its content, renames it to `to`
// and fsyncs the parent of `to`. Both must be on one file system. With kReplace, an existing `to`
// is at `from` afterwards. Throws like PublishDirectory.
void PublishPath(const std::filesystem::path& from, const std::filesystem::path& to,
                 IfThere if_there);

// Removes the leftovers `<name>.tmp-*` of killed writers from `parent`; an empty `name` matches all
// names.
void RemoveStaleTemporaries(const std::filesystem::path& parent, const std::string& name = "");

// Reads a whole file. Throws kNotFound or kIo, and kDataLoss when it is larger than `max_bytes`.
std::string ReadWholeFile(const std::filesystem::path& path, size_t max_bytes);

}  // namespace tandem::engine
