#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "training/data/parquet/metadata.h"
#include "training/data/parquet/place.h"

namespace tandem::training {

// Whether Decompress has it.
bool IsCodecRead(ParquetCodec codec);

// Fills `out` from `bytes`, never beyond it. Throws kDataLoss when they do not decompress to
// exactly out.size() bytes. REQUIRES: IsCodecRead(codec).
void Decompress(ParquetCodec codec, std::span<const std::byte> bytes, std::span<std::byte> out,
                const ParquetPlace& place);

// CRC-32 of a page, as its header may carry it.
uint32_t PageCrc(std::span<const std::byte> bytes);

}  // namespace tandem::training
