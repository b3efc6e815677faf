#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tensor/dtype.h"

namespace tandem::convert {

// An array in chunks, zarr version 2 or 3, as its metadata describes it. Of version 3 the codecs
// are those that TensorStore writes for JAX: bytes, zstd, and one level of sharding.
struct ZarrArray {
  int version = 3;
  std::vector<int64_t> shape;
  std::vector<int64_t> chunk_shape;    // of the pieces that are values of their own
  std::string type_name;               // as the metadata has it: "bfloat16", "<f4"
  int64_t element_bytes = 0;           // 0: of a type that is not read (int4, complex64, …)
  std::optional<engine::DType> dtype;  // empty for types that the engine lacks: uint32, float8, …
  bool is_compressed = false;          // with zstd
  char separator = '.';                // between the numbers of a chunk's key

  // Sharding: a value holds several chunks and an index of them.
  struct Sharding {
    std::vector<int64_t> chunk_shape;
    bool index_at_start = false;
    bool index_has_crc = false;
    bool is_index_compressed = false;
  };
  std::optional<Sharding> sharding;

  int64_t elements() const;
  int64_t bytes() const;
  // False for element types of unknown size; ZarrReader refuses the array.
  bool IsReadable() const { return element_bytes > 0; }
};

// Parses `.zarray` or `zarr.json`; `what` names it in messages. Throws kDataLoss, and kUnsupported
// naming the codec or order that is not read. Keeps arrays of unknown element types, so that one
// such leaf does not hide the others.
ZarrArray ParseZarr(int version, std::string_view json, const std::string& what);

// Whether all that is decoded at once (a chunk, in shards one of theirs) is a run of the array, but
// for what of it lies beyond the array's end.
bool HasRuns(const ZarrArray& array);

// The key of a chunk, by its position in the grid: "c/0/1" of version 3, "0.1" of version 2.
std::string ZarrChunkKey(const ZarrArray& array, std::span<const int64_t> at);

}  // namespace tandem::convert
