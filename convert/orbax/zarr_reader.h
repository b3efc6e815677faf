#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "convert/orbax/key_values.h"
#include "convert/orbax/parallel_for.h"
#include "convert/orbax/zarr.h"

namespace tandem::convert {

// Where in an array (in bytes) a run begins, and its bytes, there during the call.
using TakeRun = std::function<void(int64_t offset, std::span<const std::byte> run)>;

// Reads arrays of a store, the chunks of one on all threads of a ParallelFor. What it decodes in is
// kept for the next. Any thread.
//
// Throws kDataLoss naming the chunk, of several the first in order, whatever number of threads
// reads; one that is missing is an error, as in Orbax. Throws kUnsupported for an array that is not
// IsReadable(). `prefix` is an array's name in the store.
class ZarrReader {
 public:
  explicit ZarrReader(std::shared_ptr<const KeyValues> values);
  ~ZarrReader();

  // Looks for every chunk and compares its size with the shape, without decoding. Call this before
  // allocating array.bytes() bytes: a hostile shape fails here. Steps: one for each stored chunk.
  void CheckStored(const std::string& prefix, const ZarrArray& array) const;

  // All elements in C order, little-endian, into out.size() == array.bytes() bytes. Memory: a chunk
  // for each thread, of those that are no runs of the array.
  void Read(const std::string& prefix, const ZarrArray& array, std::span<std::byte> out,
            const ParallelFor& parallel_for = OneByOne) const;

  // The same in runs of at most kRunBytes, none of them twice, those of a chunk in order; `take` is
  // called by several threads at a time. REQUIRES: HasRuns(array).
  static constexpr size_t kRunBytes = size_t{256} << 10;
  void ReadRuns(const std::string& prefix, const ZarrArray& array, const TakeRun& take,
                const ParallelFor& parallel_for = OneByOne) const;

  // Decodes every chunk at once, in memory that has been used before, and forgets it: what reading
  // an array costs at least. For measurements.
  void Decompress(const std::string& prefix, const ZarrArray& array,
                  const ParallelFor& parallel_for = OneByOne) const;

 private:
  struct Space;
  class Reading;

  std::unique_ptr<Space> Borrow() const;
  void GiveBack(std::unique_ptr<Space> space) const;

  std::shared_ptr<const KeyValues> values_;
  mutable std::mutex mutex_;  // guards spaces_
  mutable std::vector<std::unique_ptr<Space>> spaces_;
};

}  // namespace tandem::convert
