#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {

// The families that publish their ranks in this form. The files hold neither the pattern nor the
// control tokens, so the model's configuration must say whose they are.
enum class TiktokenFamily { kQwen, kLlama3 };

// Whether a text looks like ranks: tokenizer.model may also be a SentencePiece model.
bool LooksLikeTiktoken(std::string_view text);

// Lines of `<base64 of the token's bytes> <rank>`. `added`: control tokens that the configuration
// names, which win over those known of the family. Throws kDataLoss as other readers here.
std::unique_ptr<Tokenizer> LoadTiktoken(std::string_view text, const std::string& file,
                                        TiktokenFamily family,
                                        const std::vector<AddedToken>& added);

}  // namespace tandem::engine
