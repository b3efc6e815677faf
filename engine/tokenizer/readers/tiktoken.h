#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {

// Families that publish their ranks in this form. The files hold neither the pattern nor the
// control tokens, so the model's configuration must name the family.
enum class TiktokenFamily { kQwen, kLlama3 };

// Whether a text looks like ranks. tokenizer.model may also be a SentencePiece model.
bool LooksLikeTiktoken(std::string_view text);

// Reads lines of `<base64 of the token's bytes> <rank>`. `added`: control tokens of the
// configuration, which override the family's. Throws kDataLoss like other readers.
std::unique_ptr<Tokenizer> LoadTiktoken(std::string_view text, const std::string& file,
                                        TiktokenFamily family,
                                        const std::vector<AddedToken>& added);

}  // namespace tandem::engine
