#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/io/safetensors.h"

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
  CheckpointStore(std::filesystem::path dir, int64_t keep);

  // Writes, publishes, points LATEST at it, then deletes old ones. Throws kIo (a full disk says
  // so). A valid checkpoint of the same step stays and counts as success.
  std::filesystem::path Save(const CheckpointContents& contents);

  // The newest checkpoint whose files are all there with the right sizes and hashes. Ones that are
  // not are passed over, `warn` being told which and why. Throws kUnsupported when the newest was
  // written by a later version: going back silently would lose work.
  std::optional<FoundCheckpoint> FindNewest(
      const std::function<void(const std::string& what)>& warn) const;

  const std::filesystem::path& dir() const { return dir_; }

 private:
  std::vector<std::filesystem::path> Steps() const;  // newest first
  void DeleteOld() const;

  std::filesystem::path dir_;
  int64_t keep_;
};

// Reads and checks a checkpoint directory; throws kDataLoss / kUnsupported / kNotFound saying what
// is wrong with which file.
FoundCheckpoint VerifyCheckpoint(const std::filesystem::path& dir);

}  // namespace tandem::training
