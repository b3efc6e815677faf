#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "training/data/parquet/metadata.h"
#include "training/data/parquet/place.h"

namespace tandem::training {

// Whether Decompress supports the codec.
bool IsCodecRead(ParquetCodec codec);

// Decompresses `bytes` into `out`, never beyond its end. Throws kDataLoss unless the result has
// exactly out.size() bytes. REQUIRES: IsCodecRead(codec).
void Decompress(ParquetCodec codec, std::span<const std::byte> bytes, std::span<std::byte> out,
                const ParquetPlace& place);

// CRC-32 of a page, which its header may contain.
uint32_t PageCrc(std::span<const std::byte> bytes);

}  // namespace tandem::training
