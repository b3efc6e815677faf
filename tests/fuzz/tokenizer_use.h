#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/incremental_detokenizer.h"
#include "engine/tokenizer/text/unicode.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/fuzz/strangers_file.h"

namespace tandem::engine {

// Checks a loaded tokenizer: ids within the vocabulary, streams that join to the decoded text,
// valid UTF-8 at every step. Plain text yields no control token by look-up.
inline void UseTokenizer(const Tokenizer& tokenizer, std::string_view own_text) {
  for (const std::string_view text :
       {std::string_view("I'll be <s> there  42!\n\t\xE2\x96\x81 e\xCC\x81 \xE4\xB8\xAD<|end|>"),
        std::string_view("aaaaaaaa  \xFF\xC3 \xF0\x9F\x98\x82"), own_text}) {
    for (const SpecialTokens special : {SpecialTokens::kPlainText, SpecialTokens::kParseSpecial}) {
      const std::vector<TokenId> ids = tokenizer.Encode(text, special);
      IncrementalDetokenizer detokenizer(tokenizer, /*skip_special=*/false);
      std::string streamed;
      for (const TokenId id : ids) {
        Require(id >= 0 && id < tokenizer.vocab_size());
        const std::string part = detokenizer.Push(id);
        Require(ValidUtf8Prefix(part) == part.size());
        streamed += part;
      }
      Require(streamed + detokenizer.Flush() == Decode(tokenizer, ids, false));
    }
  }
}

}  // namespace tandem::engine
