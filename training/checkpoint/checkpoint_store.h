#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/formats/safetensors/safetensors.h"

namespace tandem::training {

// Contents of one checkpoint, whatever their meaning. Save borrows the views until it returns.
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

// A complete file of a checkpoint.
struct CheckpointFile {
  std::string name;
  std::string sha256;
};

struct FoundCheckpoint {
  int64_t step = 0;
  std::filesystem::path dir;
  std::string isa_key;  // of the kernels that wrote it
};

// Checkpoints of one run, each a directory named by its step:
//
//   LATEST              text: the newest one's name; a hint for people; FindNewest lists the steps
//   000000001000/
//     manifest.json     format, version, step, producer, and bytes and SHA-256 of every other file
//     …                 the files
//
// A directory gets its name only when it is complete and on disk. A killed writer or a full disk
// therefore leaves older checkpoints intact. Only one process may write at a time.
class CheckpointStore {
 public:
  // Creates `dir` and removes the leftovers of killed writers. A save keeps the `keep` newest (at
  // least 1). `free_bytes` returns the free bytes of the disk; empty: asks the file system.
  CheckpointStore(std::filesystem::path dir, int64_t keep,
                  std::function<int64_t()> free_bytes = {});

  // From now on the weights of a checkpoint that is deleted as old stay in `dir`/step-N, without
  // the optimiser's state. `state` names the files that are left out; a name that ends with a dash
  // stands for all that begin with it. Replaces weights of the same step that are there already.
  void KeepParameters(std::filesystem::path dir, std::vector<std::string> state);

  // Writes a checkpoint, publishes it, updates LATEST, then deletes old ones. Replaces one of the
  // same step in one atomic exchange, or by two renames where the file system has no exchange.
  // Throws kIo before writing when the disk has less room than the files plus 5 %. Throws nothing
  // once the checkpoint is published (TakeFault). `others` writes more files to the unpublished
  // directory, synced to disk, and returns them.
  using WriteOthers =
      std::function<std::vector<CheckpointFile>(const std::filesystem::path& directory)>;
  std::filesystem::path Save(const CheckpointContents& contents, const WriteOthers& others = {});

  // What the disk refused after the last save had published its checkpoint; empty: nothing. The
  // old checkpoints are still there then, and the next save deletes them.
  std::string TakeFault() { return std::exchange(fault_, {}); }

  // Deletes the checkpoints up to `step`.
  void Clear(int64_t step);
  // Moves all checkpoints, and the directory `beside`, to `earlier-<n>/`, where no reader looks and
  // none is deleted. A run that does not resume must not mistake them for its own. Returns that
  // directory; empty: nothing was there.
  std::filesystem::path SetAside(const std::filesystem::path& beside = {});

  // Returns the newest checkpoint whose files all have the right sizes and hashes. Skips others and
  // reports them to `warn`. Throws kUnsupported when the newest has a later version: an older one
  // would silently lose work.
  std::optional<FoundCheckpoint> FindNewest(
      const std::function<void(const std::string& what)>& warn) const;

  const std::filesystem::path& dir() const { return dir_; }

 private:
  std::vector<std::filesystem::path> Steps() const;  // newest first
  void DeleteOld() const;
  void SaveParameters(const std::filesystem::path& step) const;
  void CheckRoom(const CheckpointContents& contents) const;
  void PutInPlace(const std::filesystem::path& next, const std::filesystem::path& final_dir) const;

  std::filesystem::path dir_;
  int64_t keep_;
  std::function<int64_t()> free_bytes_;
  std::filesystem::path parameters_dir_;  // empty: deleted checkpoints leave nothing
  std::vector<std::string> state_files_;
  std::string fault_;
};

// Reads and checks a checkpoint directory. Throws kDataLoss / kUnsupported / kNotFound naming the
// file and its fault.
FoundCheckpoint VerifyCheckpoint(const std::filesystem::path& dir);

}  // namespace tandem::training
