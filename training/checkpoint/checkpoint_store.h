#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/formats/safetensors/safetensors.h"

namespace tandem::training {

// What one checkpoint holds, whatever it means. Views are borrowed for the duration of Save.
struct CheckpointContents {
  struct TensorFile {
    std::string name;
    std::vector<engine::NamedTensor> tensors;
    std::map<std::string, std::string> metadata = {{"format", "pt"}};
  };
  int64_t step = 0;
  std::string kind = "full";  // full | params
  std::string arch;
  std::string isa_key;
  std::map<std::string, std::string> texts;  // file name -> text
  std::vector<TensorFile> tensor_files;
};

struct FoundCheckpoint {
  int64_t step = 0;
  std::filesystem::path dir;
  std::string isa_key;  // of the arithmetic that wrote it
};

// Checkpoints of one run, each a directory named by its step:
//
//   LATEST              text: the newest one's name; a hint, readers look for themselves
//   000000001000/
//     manifest.json     format, version, step, producer, and bytes and SHA-256 of every other file
//     …                 the files
//
// A directory appears under its name only when it is complete and on disk, so a killed writer or a
// full disk leaves older checkpoints as they were. One process writes at a time.
class CheckpointStore {
 public:
  // `keep`: how many are left after a save (at least 1). Creates `dir`; removes what killed writers
  // left behind.
  // `free_bytes`: how much the disk has room for; empty: as the file system says.
  CheckpointStore(std::filesystem::path dir, int64_t keep,
                  std::function<int64_t()> free_bytes = {});

  // Writes, publishes, points LATEST at it, then deletes old ones. One of the same step is replaced
  // in one atomic exchange (on file systems that have none: by two renames). Throws kIo, before the
  // first byte when the disk has less room than the files and 5 % need.
  std::filesystem::path Save(const CheckpointContents& contents);

  // Moves what there is to `earlier-<n>/`, where nobody looks for checkpoints or deletes them: a
  // run that resumes nothing must neither mistake them for its own nor lose its own to them.
  // Returns that directory, empty when there was nothing.
  std::filesystem::path SetAside();

  // The newest checkpoint whose files are all there with the right sizes and hashes. Ones that are
  // not are passed over, `warn` being told which and why. Throws kUnsupported when the newest was
  // written by a later version: going back silently would lose work.
  std::optional<FoundCheckpoint> FindNewest(
      const std::function<void(const std::string& what)>& warn) const;

  const std::filesystem::path& dir() const { return dir_; }

 private:
  std::vector<std::filesystem::path> Steps() const;  // newest first
  void DeleteOld() const;
  void CheckRoom(const CheckpointContents& contents) const;
  void PutInPlace(const std::filesystem::path& next, const std::filesystem::path& final_dir) const;

  std::filesystem::path dir_;
  int64_t keep_;
  std::function<int64_t()> free_bytes_;
};

// Reads and checks a checkpoint directory; throws kDataLoss / kUnsupported / kNotFound saying what
// is wrong with which file.
FoundCheckpoint VerifyCheckpoint(const std::filesystem::path& dir);

}  // namespace tandem::training
