#pragma once

#include <string>
#include <string_view>

namespace tandem {

// Makes foreign text safe for a message: single quotes, at most `longest` bytes, one printable
// line.
std::string Quoted(std::string_view text, size_t longest = 120);

}  // namespace tandem
