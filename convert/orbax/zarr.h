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

// Description of a chunked array, zarr version 2 or 3. Version 3 codecs are those that TensorStore
// writes for JAX: bytes, zstd, and one level of sharding.
struct ZarrArray {
  int version = 3;
  std::vector<int64_t> shape;
  std::vector<int64_t> chunk_shape;    // of chunks, or of shards
  std::string type_name;               // as in the metadata: "bfloat16", "<f4"
  int64_t element_bytes = 0;           // 0: unsupported type (int4, complex64, …)
  std::optional<engine::DType> dtype;  // empty: the engine lacks it (uint32, float8, …)
  bool is_compressed = false;          // with zstd
  char separator = '.';                // between the numbers of a chunk's key

  // Sharding: a stored value holds several chunks and their index.
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
// naming an unsupported codec or order. Accepts unknown element types, so that one such leaf does
// not hide the others.
ZarrArray ParseZarr(int version, std::string_view json, const std::string& what);

// Whether each decoded chunk, clipped to the array, is a contiguous run of it. In shards these are
// the inner chunks.
bool HasRuns(const ZarrArray& array);

// Returns the key of a chunk at a grid position: "c/0/1" in version 3, "0.1" in version 2.
std::string ZarrChunkKey(const ZarrArray& array, std::span<const int64_t> at);

}  // namespace tandem::convert
