#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {

// A Hugging Face `tokenizer.json`. README.md lists the supported parts of the format.
struct LoadedTokenizerJson {
  std::unique_ptr<Tokenizer> tokenizer;
  // Tokens that its post-processor puts around every text.
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
};

// `file` names the file in messages. Throws kDataLoss and kUnsupported like LoadTokenizer.
LoadedTokenizerJson LoadTokenizerJson(std::string_view text, const std::string& file);

}  // namespace tandem::engine
