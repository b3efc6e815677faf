#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem::training {

// HighwayHash-64 (Alakuijala et al. 2016) with the key of Riegeli's files.
uint64_t RiegeliHash(std::span<const std::byte> bytes);

}  // namespace tandem::training
