#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {

// Joins the bytes of arriving tokens to whole UTF-8 characters. The concatenation of all outputs
// equals Decode() of all ids. Bytes that cannot become a character turn into U+FFFD as soon as this
// is certain. Text that a later token may change waits, at most until Flush: an unfinished
// character, an end that differs on the last token, text that a decoder rule may replace. Owned by
// one thread.
class IncrementalDetokenizer {
 public:
  // `continues_text`: the tokens follow others, so a leading space belongs to the text.
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special,
                         bool continues_text = false);

  std::string Push(TokenId id);  // valid UTF-8, possibly empty
  std::string Flush();           // the waiting text, with broken characters as U+FFFD; then empty

 private:
  bool AppendBytes(TokenId id);
  std::string TakeWhole();
  std::string ApplyRules(std::string text, bool at_end);

  const Tokenizer* tokenizer_;
  const Decoder* decoder_;  // may be null
  bool looks_at_places_;
  bool skip_special_;
  bool at_start_;
  std::string pending_;      // bytes not output yet
  std::string end_if_last_;  // of the last token, if they differ; see Decoder::last_differs
  std::string end_if_not_;
  std::vector<TextRuleState> rules_;
};

}  // namespace tandem::engine
