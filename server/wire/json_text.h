#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/ids.h"

namespace tandem::server {

// JSON written straight into a string, for answers that go out many times a second. Nothing here
// allocates but the string itself. What is written parses back to exactly what was given.

// A string literal with its quotes. Bytes that are not UTF-8 become U+FFFD, as elsewhere.
void AppendJsonString(std::string& out, std::string_view text);

// The shortest digits that read back as the same number. REQUIRES: finite.
void AppendJsonNumber(std::string& out, double number);

template <std::integral Integer>
void AppendJsonInt(std::string& out, Integer number) {
  char digits[24];
  const auto [end, fault] = std::to_chars(digits, digits + sizeof(digits), number);
  out.append(digits, end);
}

// `[1,2,3]`
void AppendJsonInts(std::string& out, std::span<const TokenId> numbers);
// The same for bytes, each 0 to 255.
void AppendJsonBytes(std::string& out, std::string_view bytes);

}  // namespace tandem::server
