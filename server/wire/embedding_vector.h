#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "server/wire/embedding_request.h"

namespace tandem::server {

// The first `dimensions` numbers of a pooled hidden state, scaled to L2 norm 1. A zero vector stays
// zero. REQUIRES: finite; 1 <= dimensions <= values.size().
std::vector<float> UnitVector(std::span<const float> values, int64_t dimensions);

// The cosine of two unit vectors of one length, in [-1, 1].
double Cosine(std::span<const float> a, std::span<const float> b);

// Appends an array of numbers that parse back to the same floats, or a string: base64 of
// little-endian float32.
void AppendVector(std::string& out, std::span<const float> values, EmbeddingEncoding encoding);

}  // namespace tandem::server
