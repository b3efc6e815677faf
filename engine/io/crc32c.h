#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem::engine {

// CRC-32C (Castagnoli), as iSCSI and most data formats use it. `crc` is the value of what came
// before; 0 begins. Uses the processor's instruction where there is one.
uint32_t Crc32c(uint32_t crc, std::span<const std::byte> bytes);
// The same without that instruction.
uint32_t PortableCrc32c(uint32_t crc, std::span<const std::byte> bytes);

}  // namespace tandem::engine
