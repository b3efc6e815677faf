#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "training/checkpoint/checkpoint_store.h"
#include "training/setup/exported_tensors.h"
#include "training/setup/run_parts.h"

namespace tandem::training {

// Whether all ranks of the run write its weights and checkpoints together (checkpoint.sharded).
bool WritesTogether(const RunParts& parts);

// A file of whole tensors, which one rank writes.
struct SharedFile {
  std::string name;
  int writer = 0;
  std::vector<size_t> tensors;  // consecutive
};

// Divides tensors of these sizes into files "<kind>-00001-of-00003.safetensors" of up to `most`
// bytes, one tensor at least, so that no writer is left out when there are several files. Depends
// on its arguments alone.
std::vector<SharedFile> DivideIntoFiles(const std::string& kind, const std::vector<int64_t>& bytes,
                                        int writers, int64_t most);

// The weights of a run, and with `with_state` its optimiser state, as files that all ranks write.
// A rank holds one file at a time. Borrows the parts.
class SharedFiles {
 public:
  // `place` is the key of the directory that WriteAll's directories lie in, for its errors.
  SharedFiles(const RunParts& parts, bool with_state, std::string place = "base_output_directory");

  // The index of several weight files, for the directory of a model; else empty.
  std::map<std::string, std::string> texts() const;

  // Calls `publish` on the first rank, with a function that makes all ranks write their files to a
  // directory. Throws there what `publish` or a rank's writing throws, and kIo before anything
  // moves when a rank does not have the directory. All ranks call it.
  using Write = std::function<std::vector<CheckpointFile>(const std::filesystem::path& directory)>;
  void WriteAll(const std::function<void(const Write& write)>& publish);

 private:
  struct State {
    engine::NamedTensor tensor;  // whole on this rank, unless there are part_bytes
    size_t weight = 0;
    std::span<const std::byte> own;
    std::vector<int64_t> part_bytes;
  };
  struct Content;
  std::vector<CheckpointFile> WriteMine(const std::filesystem::path& directory);
  // Throws on all ranks when one does not have the directory.
  void CheckIsShared(const std::filesystem::path& directory) const;
  // Gathers a file's tensors on its writer.
  void Collect(const SharedFile& file, bool is_state, Content* content) const;
  std::vector<std::byte> GatherWeight(size_t weight, int root) const;

  const RunParts& parts_;
  const std::string place_;
  std::vector<ExportedTensor> weights_;
  std::vector<State> state_;
  std::vector<SharedFile> weight_files_;
  std::vector<SharedFile> state_files_;
  int64_t weight_bytes_ = 0;
};

}  // namespace tandem::training
