#pragma once

#include <string_view>

namespace tandem::server {

// tchar of RFC 9110, the characters of methods, field names and parameter names.
inline bool IsTokenChar(char c) {
  if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
  return std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

}  // namespace tandem::server
