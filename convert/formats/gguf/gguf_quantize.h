#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "convert/formats/gguf/gguf_writer.h"

namespace tandem::convert {

// Encodes numbers for GGUF, rounding like the format's reference. Any thread.

// Returns "F32", "Q4_0", …, in GGUF's spelling.
std::string_view GgufNumbersName(GgufNumbers numbers);
bool IsBlocked(GgufNumbers numbers);  // 32 numbers of a row share a scale

// Rounding error of one tensor, or the sum over several.
struct GgufError {
  double max_abs = 0;
  double squares = 0;         // of the differences
  double source_squares = 0;  // of the numbers themselves
  void Add(const GgufError& other);
  double RelativeRms() const;  // sqrt(squares / source_squares); 0 if all numbers are 0
};

// Encodes values into `out`, which has GgufBytes bytes; `error` may be null. Returns false, and
// does not write `out`, for a value that is not finite or outside the range of the type or its
// scales. REQUIRES: whole blocks.
bool EncodeGguf(GgufNumbers numbers, std::span<const float> values, std::span<std::byte> out,
                GgufError* error);

}  // namespace tandem::convert
