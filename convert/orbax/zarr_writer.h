#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "convert/orbax/zarr.h"

namespace tandem::convert {

// An array as it is written: `version` 2 or 3, cut into equal chunks of at most `max_chunk_bytes`,
// where its sizes have divisors for that; the first axes are cut first, so that most chunks are
// runs of the array. Throws kUnsupported for a type that the format does not have,
// kInvalidArgument.
ZarrArray PlanZarr(int version, engine::DType dtype, std::vector<int64_t> shape,
                   int64_t max_chunk_bytes);

// The array's description, and the name it has below the array's: `.zarray`, `zarr.json`.
const char* ZarrMetadataName(const ZarrArray& array);
std::string ZarrMetadataText(const ZarrArray& array);

int64_t ZarrChunkCount(const ZarrArray& array);
// Where the chunk of this number (in C order) is in the grid.
std::vector<int64_t> ZarrChunkPosition(const ZarrArray& array, int64_t chunk);
// Such a chunk as it is stored, of the whole array's bytes. Any thread.
std::vector<std::byte> EncodeZarrChunk(const ZarrArray& array, int64_t chunk,
                                       std::span<const std::byte> bytes);

}  // namespace tandem::convert
