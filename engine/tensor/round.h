#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/tensor/dtype.h"

namespace tandem::engine {

// Whether every value is finite and rounds to a finite number of the floating-point type.
bool FitsIn(std::span<const float> values, DType dtype);

// Converts the values to a floating-point type, each rounded once, to nearest.
void RoundTo(DType dtype, std::span<const float> values, std::vector<std::byte>* bytes);

}  // namespace tandem::engine
