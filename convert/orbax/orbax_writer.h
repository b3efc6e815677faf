#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "convert/orbax/key_value_writer.h"
#include "convert/orbax/zarr.h"
#include "engine/base/thread_pool.h"
#include "engine/tensor/dtype.h"

namespace tandem::convert {

// How an item is stored: what Orbax calls use_ocdbt and use_zarr3.
struct OrbaxStorage {
  bool ocdbt = true;
  int zarr = 3;                                 // 2 or 3
  int64_t max_chunk_bytes = int64_t{16} << 20;  // of a chunk, before it is compressed
  OcdbtSizes ocdbt_sizes = {};
  OrbaxStamp stamp = NewOrbaxStamp();
};

// An array as an item has it, for a writer that goes on: its description and chunks, in order.
using StoredArray = std::vector<StoredValue>;

// Writes one item of a checkpoint, leaf by leaf, into a directory that is there or is made: what
// OrbaxCheckpoint reads and Orbax restores. Memory: some chunks beside the leaf that the caller
// holds. Nothing is complete before Finish. One thread; chunks are encoded on the pool's.
//
// A writer that was killed is gone on with by another of the same directory and storage that is
// told by Restore, in their order, of the first arrays it had added, and has RemoveOthers clear
// away the rest. What it adds then, and finishes, are the bytes that the first would have written.
class OrbaxItemWriter {
 public:
  using Path = std::vector<std::string>;  // keys of the tree; none may be empty

  OrbaxItemWriter(const std::filesystem::path& dir, const OrbaxStorage& storage, ThreadPool& pool);
  ~OrbaxItemWriter();

  // A leaf of NumPy's, in C order. Throws kInvalidArgument for keys that Orbax could not tell
  // apart, kIo.
  StoredArray AddArray(const Path& path, engine::DType dtype, const std::vector<int64_t>& shape,
                       std::span<const std::byte> bytes);
  void AddScalar(const Path& path, int64_t value);  // a number of Python's
  void AddEmptyDict(const Path& path);
  void Finish();

  // False where it is not there, or not so: then nothing can be gone on with.
  bool Restore(const Path& path, engine::DType dtype, const std::vector<int64_t>& shape,
               const StoredArray& put);
  void RemoveOthers();
  // Files and directories that have changed since the last call.
  std::vector<std::filesystem::path> TakeChanged() { return values_->TakeChanged(); }

 private:
  struct Tree;

  ZarrArray Plan(engine::DType dtype, const std::vector<int64_t>& shape) const;
  StoredArray PutAll(const std::string& name, const ZarrArray& array,
                     std::span<const std::byte> bytes);

  std::filesystem::path dir_;
  OrbaxStorage storage_;
  ThreadPool& pool_;
  std::unique_ptr<KeyValueWriter> values_;
  std::unique_ptr<Tree> tree_;
};

// `_CHECKPOINT_METADATA` of a step that has the item `items`, and came into being at that time;
// `custom_json` is an object. Written last: it is what makes the step a finished one.
void WriteOrbaxStep(const std::filesystem::path& step_dir, const std::string& custom_json,
                    int64_t time_ns);

}  // namespace tandem::convert
