#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "convert/orbax/zarr.h"

namespace tandem::convert {

// Plans an array of zarr `version` 2 or 3. Chunks are equal and have at most `max_chunk_bytes`, or
// one element. An axis of prime length is cut into single entries. The first axes are cut first, so
// that most chunks are runs of the array. REQUIRES: zarr has a name for `dtype`. Throws
// kInvalidArgument for another version.
ZarrArray PlanZarr(int version, engine::DType dtype, std::vector<int64_t> shape,
                   int64_t max_chunk_bytes);

// Name (`.zarray`, `zarr.json`) and text of the array's description.
const char* ZarrMetadataName(const ZarrArray& array);
std::string ZarrMetadataText(const ZarrArray& array);

int64_t ZarrChunkCount(const ZarrArray& array);
// Returns the grid position of a chunk, numbered in C order.
std::vector<int64_t> ZarrChunkPosition(const ZarrArray& array, int64_t chunk);
// Returns the stored form of a chunk; `bytes` is the whole array. Any thread.
std::vector<std::byte> EncodeZarrChunk(const ZarrArray& array, int64_t chunk,
                                       std::span<const std::byte> bytes);

}  // namespace tandem::convert
