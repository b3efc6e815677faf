#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/tensor/dtype.h"

namespace tandem::engine {

// Whether every value is finite and rounds to a number that the floating-point type has.
bool FitsIn(std::span<const float> values, DType dtype);

// The values in a floating-point type, each rounded once, to the nearest.
void RoundTo(DType dtype, std::span<const float> values, std::vector<std::byte>* bytes);

}  // namespace tandem::engine
