#pragma once

#include <string>
#include <string_view>

namespace tandem {

// Foreign text made fit for a message: in single quotes, cut to `longest` bytes, one printable
// line.
std::string Quoted(std::string_view text, size_t longest = 120);

}  // namespace tandem
