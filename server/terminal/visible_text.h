#pragma once

#include <string>
#include <string_view>

// Makes foreign text safe for a terminal: the output of models, names of files, errors of servers.
// Whatever could move the cursor, restyle, reorder or hide text becomes visible instead:
//
//   C0 controls, DEL   their pictures: ESC is U+241B
//   C1 controls, bidirectional controls, line separators, tags and other invisible marks   <U+202E>
//   bytes that are not UTF-8   U+FFFD
namespace tandem::server {

// Filters a stream whose pieces may end inside a character. Keeps LF and tabs; CR LF becomes LF.
// One thread.
class VisibleStream {
 public:
  // Returns the part of the text that is now complete.
  std::string Feed(std::string_view bytes);
  // Ends the stream and returns what was held back.
  std::string Finish();

 private:
  std::string held_;  // the beginning of a character, or CR
};

// A whole text; keeps LF and tabs.
std::string VisibleText(std::string_view text);

// For one line, such as a message or a cell of a table: LF and tabs become visible too.
// Texts over `longest` bytes end in "…".
std::string VisibleLine(std::string_view text, size_t longest = 4096);

}  // namespace tandem::server
