#pragma once

#include <filesystem>
#include <string>

#include "engine/io/atomic_write.h"
#include "engine/io/posix_file.h"

namespace tandem::convert {

// `<target>.part/` beside a target, in which one conversion at a time makes it:
//
//   conversion.json   what is being made, of what
//   target            what becomes the target
//   journal           what of that is written (journal.h)
//   merged/           an adapter in its base
//   …                 what is needed meanwhile
//
// Locked for as long as the object lives, and removed at its end unless it is to be kept: else only
// a process that is killed leaves one. One thread.
class WorkDir {
 public:
  static constexpr const char* kOut = "target";
  static constexpr const char* kJournalFile = "journal";
  static constexpr const char* kMergedDir = "merged";

  // Throws kUnavailable where another conversion is writing the target, kAlreadyExists where
  // something else has that name.
  explicit WorkDir(const std::filesystem::path& target);
  ~WorkDir();
  WorkDir(const WorkDir&) = delete;
  WorkDir& operator=(const WorkDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path out() const { return path_ / kOut; }

  // What an interrupted conversion left here stays, and true is returned, if it was of the same
  // identity; else nothing is here afterwards but that identity. What is only needed meanwhile goes
  // either way.
  bool Begin(const std::string& identity);
  // Leaves what is here to the next conversion of the target, as a kill does.
  void Keep() { is_kept_ = true; }
  // Whether that one would find something of the target to be done.
  bool IsBegun() const;
  // Gives out() the target's name in one step. After a kill from here on nothing is gone on with.
  void Publish(engine::IfThere if_there);

 private:
  void Clear();

  const std::filesystem::path target_;
  const std::filesystem::path path_;
  engine::FileDescriptor lock_;
  bool is_kept_ = false;
  bool is_publishing_ = false;
};

// Removes what an interrupted conversion of the target has left, if there is anything. Throws as
// WorkDir's constructor, and leaves it, where another conversion is at work there.
void RemoveUnfinished(const std::filesystem::path& target);

}  // namespace tandem::convert
