#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::server {

// Counts the Unicode characters of a text whose bytes arrive in pieces, as it is answered: whatever
// cannot be a character is U+FFFD there, one for each maximal part.
class CharacterCounter {
 public:
  // The number of the character, from 0, to which the first of these bytes belongs. Without bytes:
  // of the one in which the text has arrived.
  int64_t Push(std::string_view bytes);
  // The text ends here: an unfinished character will not be finished.
  void Flush();

 private:
  int64_t n_decided_ = 0;
  std::string unfinished_;  // at most 3 bytes of the character behind those
};

}  // namespace tandem::server
