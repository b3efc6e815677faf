#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tandem::convert {

// Zstandard frames (RFC 8878). TensorStore's do not say the size of what is in them; ours do, and
// have a checksum of it, which every reader of such frames looks at.
// Those that decode throw kDataLoss naming `what`.

// Fills `out` exactly.
void DecodeZstd(std::span<const std::byte> bytes, std::span<std::byte> out,
                const std::string& what);
// Of unknown size, at most `most`: memory grows with what comes out, not with what is claimed.
std::vector<std::byte> DecodeZstdUpTo(std::span<const std::byte> bytes, size_t most,
                                      const std::string& what);

// One frame at level 1: weights hardly become smaller at others.
std::vector<std::byte> EncodeZstd(std::span<const std::byte> bytes);

}  // namespace tandem::convert
