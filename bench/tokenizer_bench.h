#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

#include "engine/tokenizer/tokenizer.h"

namespace tandem::bench {

struct TokenizerBenchOptions {
  int rounds = 5;
};

// Megabytes of text per second of one core's time, encoded and decoded, as one text and line by
// line; beside it how often the same bytes are checked for UTF-8 meanwhile, the least that any
// tokenizer must do.
int RunTokenizerBench(std::ostream& out, const engine::Tokenizer& tokenizer, std::string_view text,
                      const TokenizerBenchOptions& options);

}  // namespace tandem::bench
