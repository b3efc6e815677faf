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

// How an item is stored: Orbax's use_ocdbt and use_zarr3.
struct OrbaxStorage {
  bool ocdbt = true;
  int zarr = 3;                                 // 2 or 3
  int64_t max_chunk_bytes = int64_t{16} << 20;  // before compression
  OcdbtSizes ocdbt_sizes = {};
  OrbaxStamp stamp = NewOrbaxStamp();
};

// A written array for resuming: its description and its chunks, in order.
using StoredArray = std::vector<StoredValue>;

// Writes one item of a checkpoint, leaf by leaf, into a new or existing directory. OrbaxCheckpoint
// reads it and Orbax restores it. Uses memory for a few chunks besides the caller's leaf. Nothing
// is complete before Finish. One thread; the pool encodes chunks.
//
// Resume: open a new writer on the same directory and storage, call Restore() for each array
// already written, in order, then RemoveOthers(). The result is byte-identical.
class OrbaxItemWriter {
 public:
  using Path = std::vector<std::string>;  // keys of the tree; none may be empty

  OrbaxItemWriter(const std::filesystem::path& dir, const OrbaxStorage& storage, ThreadPool& pool);
  ~OrbaxItemWriter();

  // Adds a NumPy array in C order. Throws kInvalidArgument for keys that Orbax cannot represent,
  // kIo.
  StoredArray AddArray(const Path& path, engine::DType dtype, const std::vector<int64_t>& shape,
                       std::span<const std::byte> bytes);
  void AddScalar(const Path& path, int64_t value);  // a Python number
  void AddEmptyDict(const Path& path);
  void Finish();

  // Returns false if the array is missing or differs; resuming is then impossible.
  bool Restore(const Path& path, engine::DType dtype, const std::vector<int64_t>& shape,
               const StoredArray& put);
  void RemoveOthers();
  // Returns the files and directories changed since the last call.
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

// Writes `_CHECKPOINT_METADATA` of a step with the item `items`, created at `time_ns`;
// `custom_json` is an object. Write it last, because it marks the step as finished.
void WriteOrbaxStep(const std::filesystem::path& step_dir, const std::string& custom_json,
                    int64_t time_ns);

}  // namespace tandem::convert
