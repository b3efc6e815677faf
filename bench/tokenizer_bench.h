#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

#include "engine/tokenizer/tokenizer.h"

namespace tandem::bench {

struct TokenizerBenchOptions {
  int rounds = 5;
};

// Measures MB/s of one core, encoding and decoding, as one text and line by line. Each is compared
// with checking the same bytes for UTF-8, the least that a tokenizer must do.
int RunTokenizerBench(std::ostream& out, const engine::Tokenizer& tokenizer, std::string_view text,
                      const TokenizerBenchOptions& options);

}  // namespace tandem::bench
