#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "convert/formats/gguf/gguf_writer.h"

namespace tandem::convert {

// Numbers into the encodings of GGUF, as the format's reference rounds them. Any thread.

// "F32", "Q4_0", as GGUF's users write it.
std::string_view GgufNumbersName(GgufNumbers numbers);
bool IsBlocked(GgufNumbers numbers);  // 32 numbers of a row with one scale

// What was lost: of one tensor, or of several together.
struct GgufError {
  double max_abs = 0;
  double squares = 0;         // of the differences
  double source_squares = 0;  // of the numbers themselves
  void Add(const GgufError& other);
  double RelativeRms() const;  // root of the quotient; 0 where all numbers are 0
};

// False where the encoding does not have a value: one that is not finite, or beyond the type's (or
// its scales') range; then `out` is not written. `out` has GgufBytes bytes; `error` may be null.
// REQUIRES: whole blocks.
bool EncodeGguf(GgufNumbers numbers, std::span<const float> values, std::span<std::byte> out,
                GgufError* error);

}  // namespace tandem::convert
