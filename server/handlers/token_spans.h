#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "server/handlers/prompt.h"

namespace tandem::server {

// Where each token of `text` stands in it: [begin, end), in order, never beyond the text. A token
// that adds what the text does not hold (a leading space of the tokenizer's own) covers the rest of
// its bytes.
std::vector<std::pair<size_t, size_t>> TokenSpans(const engine::Tokenizer& tokenizer,
                                                  std::string_view text,
                                                  const std::vector<TokenId>& ids);

// What training would learn from a chat rendered with learned messages: every token that holds
// something of theirs, and the control token right behind, which ends the turn: a model that does
// not learn it never stops.
std::vector<bool> LossMask(const engine::Tokenizer& tokenizer, const EncodedChat& chat);

}  // namespace tandem::server
