#pragma once

#include <filesystem>
#include <string>

#include "engine/io/atomic_write.h"
#include "engine/io/posix_file.h"

namespace tandem::convert {

// Work directory `<target>.part/` in which one conversion at a time builds its target:
//
//   conversion.json   identity of the conversion (identity.h)
//   target            becomes the target
//   journal           tensors already written (journal.h)
//   merged/           an adapter merged into its base
//   …                 temporary files
//
// It is locked while the object lives and removed by the destructor unless Keep() was called. A
// killed process leaves it behind. One thread.
class WorkDir {
 public:
  static constexpr const char* kOut = "target";
  static constexpr const char* kJournalFile = "journal";
  static constexpr const char* kMergedDir = "merged";

  // Throws kUnavailable if another conversion is writing the target, kAlreadyExists if the path is
  // not a work directory.
  explicit WorkDir(const std::filesystem::path& target);
  ~WorkDir();
  WorkDir(const WorkDir&) = delete;
  WorkDir& operator=(const WorkDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path out() const { return path_ / kOut; }

  // Returns true and keeps the work of an interrupted conversion with the same identity. Otherwise
  // clears the directory and records the new identity. Temporary files are removed either way.
  bool Begin(const std::string& identity);
  // Leaves the work to the next conversion of this target, as a kill does.
  void Keep() { is_kept_ = true; }
  // Whether the next conversion of this target would find work to resume.
  bool IsBegun() const;
  // Renames out() to the target in one step. A kill during the call may make resuming impossible.
  void Publish(engine::IfThere if_there);

 private:
  void Clear();

  const std::filesystem::path target_;
  const std::filesystem::path path_;
  engine::FileDescriptor lock_;
  bool is_kept_ = false;
  bool is_publishing_ = false;
};

// Removes the work directory of an interrupted conversion of the target, if there is one. Throws
// like the constructor, and leaves the directory, if another conversion is using it.
void RemoveUnfinished(const std::filesystem::path& target);

}  // namespace tandem::convert
