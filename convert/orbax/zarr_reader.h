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
#include "convert/orbax/zarr.h"
#include "engine/base/parallel_for.h"

namespace tandem::convert {

// Receives a run of an array: byte offset and bytes, valid during the call.
using TakeRun = std::function<void(int64_t offset, std::span<const std::byte> run)>;

// Reads arrays of a store, decoding the chunks of an array on all threads of a ParallelFor. Buffers
// are reused. Any thread.
//
// Throws kDataLoss naming the chunk; of several bad chunks the first in order, for any number of
// threads. A missing chunk is an error, because Orbax writes all of them. Throws kUnsupported for
// an array that is not IsReadable(). `prefix` is an array's name in the store.
class ZarrReader {
 public:
  explicit ZarrReader(std::shared_ptr<const KeyValues> values);
  ~ZarrReader();

  // Compares the size of every chunk with the shape, without decoding. Call it before allocating
  // array.bytes() bytes: a hostile shape fails here. The cost is one step per stored chunk.
  void CheckStored(const std::string& prefix, const ZarrArray& array) const;

  // Reads all elements in C order, little-endian, into out.size() == array.bytes() bytes. Needs
  // memory for one chunk per thread, unless chunks are runs of the array.
  void Read(const std::string& prefix, const ZarrArray& array, std::span<std::byte> out,
            const ParallelFor& parallel_for = OneByOne) const;

  // Like Read, in runs of at most kRunBytes. Each run comes once, and the runs of a chunk in order;
  // several threads may call `take` at a time. REQUIRES: HasRuns(array).
  static constexpr size_t kRunBytes = size_t{256} << 10;
  void ReadRuns(const std::string& prefix, const ZarrArray& array, const TakeRun& take,
                const ParallelFor& parallel_for = OneByOne) const;

  // Decodes every chunk into reused memory and discards it: the least cost of reading an array, for
  // benchmarks.
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
