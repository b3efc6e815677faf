#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::server {

// Counts the Unicode characters of a text that arrives in pieces. Each maximal invalid part counts
// as one character, because answers show it as U+FFFD.
class CharacterCounter {
 public:
  // Returns the index, from 0, of the character that contains the first of these bytes. Without
  // bytes: the index of the current character.
  int64_t Push(std::string_view bytes);
  // Marks the end of the text: an unfinished character counts as one.
  void Flush();

 private:
  int64_t n_decided_ = 0;
  std::string unfinished_;  // at most 3 bytes of the next character
};

}  // namespace tandem::server
