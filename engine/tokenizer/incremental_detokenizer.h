#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {

// Joins token bytes to whole UTF-8 characters as they arrive. The concatenation of all outputs
// equals Decode() of all ids: bytes that cannot become a character turn into U+FFFD at the moment
// this is certain; what a later token may still change waits, at most until Flush: an unfinished
// character, an end that differs on the last token, text that a rule of the decoder may replace.
// Owned by one thread.
class IncrementalDetokenizer {
 public:
  // `continues_text`: the tokens follow others, so a leading space is text, not the tokenizer's.
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special,
                         bool continues_text = false);

  std::string Push(TokenId id);  // valid UTF-8, possibly empty
  std::string Flush();           // what was waiting, a broken character as U+FFFD; then empty

 private:
  bool AppendBytes(TokenId id);
  std::string TakeWhole();
  std::string ApplyRules(std::string text, bool at_end);

  const Tokenizer* tokenizer_;
  const Decoder* decoder_;  // or none
  bool looks_at_places_;
  bool skip_special_;
  bool at_start_;
  std::string pending_;      // bytes that are not text yet
  std::string end_if_last_;  // of the token before, where they differ; see Decoder::last_differs
  std::string end_if_not_;
  std::vector<TextRuleState> rules_;
};

}  // namespace tandem::engine
