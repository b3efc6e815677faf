#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {

// A Hugging Face `tokenizer.json`. README.md lists what of the format is read.
struct LoadedTokenizerJson {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<TokenId> template_bos;  // the token its post-processor puts before every text
};

// `file` names the file in messages. Throws kDataLoss and kUnsupported as LoadTokenizer.
LoadedTokenizerJson LoadTokenizerJson(std::string_view text, const std::string& file);

}  // namespace tandem::engine
