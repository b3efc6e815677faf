#pragma once

#include <cstdio>
#include <ostream>

namespace tandem::bench {

// Writes to a stream what printf would, up to 299 characters.
inline void PrintFormatted(std::ostream& out, const char* format, auto... values) {
  char text[300];
  std::snprintf(text, sizeof text, format, values...);
  out << text << std::flush;
}

// Writes the text of PrintFormatted and ends the line.
inline void PrintLine(std::ostream& out, const char* format, auto... values) {
  PrintFormatted(out, format, values...);
  out << std::endl;
}

}  // namespace tandem::bench
