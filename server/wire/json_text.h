#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/ids.h"

namespace tandem::server {

// Writes JSON straight into a string, for frequent answers. Only the string allocates. The output
// parses back to the same value.

// Appends a quoted string. Invalid UTF-8 becomes U+FFFD.
void AppendJsonString(std::string& out, std::string_view text);

// Appends the shortest digits that parse back to the same number. REQUIRES: finite.
void AppendJsonNumber(std::string& out, double number);

template <std::integral Integer>
void AppendJsonInt(std::string& out, Integer number) {
  char digits[24];
  const auto [end, fault] = std::to_chars(digits, digits + sizeof(digits), number);
  out.append(digits, end);
}

// Appends `[1,2,3]`.
void AppendJsonInts(std::string& out, std::span<const TokenId> numbers);
// Appends an array of byte values, 0 to 255.
void AppendJsonBytes(std::string& out, std::string_view bytes);

}  // namespace tandem::server
