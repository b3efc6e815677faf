#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem::engine {

// CRC-32C (Castagnoli), as in iSCSI and most data formats. `crc` is the CRC of the bytes before;
// start with 0. Uses the SSE4.2 instruction when the processor has it.
uint32_t Crc32c(uint32_t crc, std::span<const std::byte> bytes);
// Like Crc32c, without that instruction.
uint32_t PortableCrc32c(uint32_t crc, std::span<const std::byte> bytes);

}  // namespace tandem::engine
