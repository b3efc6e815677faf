#pragma once

#include "engine/model/families/gguf_architecture.h"

namespace tandem::engine::gemma3n {

// The number of standard deviations above the mean below which `share` of a normal distribution
// lies.
float DeviationsOf(double share);

// Gemma 3n in GGUF files.
extern const GgufArchitecture kGguf;

}  // namespace tandem::engine::gemma3n
