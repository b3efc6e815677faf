#pragma once

#include <string>
#include <string_view>

#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {

// Joins token bytes to whole UTF-8 characters as they arrive. The concatenation of all outputs
// equals Decode() of all ids: bytes that cannot become a character turn into U+FFFD at the moment
// this is certain; an unfinished tail waits until Flush. Owned by one thread.
class IncrementalDetokenizer {
 public:
  // `continues_text`: the tokens follow others, so a leading space is text, not the tokenizer's.
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special, bool continues_text = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special), at_start_(!continues_text) {}

  std::string Push(TokenId id);  // valid UTF-8, possibly empty
  std::string Flush();           // what was waiting, as U+FFFD; then empty

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool at_start_;
  std::string pending_;  // at most 3 bytes of a character that may still become whole
};

}  // namespace tandem::engine
