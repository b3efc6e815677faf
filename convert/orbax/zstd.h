#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tandem::convert {

// Zstandard frames (RFC 8878) as TensorStore writes them: without the size of what is in them.
// Both throw kDataLoss naming `what`.

// Fills `out` exactly.
void DecodeZstd(std::span<const std::byte> bytes, std::span<std::byte> out,
                const std::string& what);
// Of unknown size, at most `most`: memory grows with what comes out, not with what is claimed.
std::vector<std::byte> DecodeZstdUpTo(std::span<const std::byte> bytes, size_t most,
                                      const std::string& what);

}  // namespace tandem::convert
