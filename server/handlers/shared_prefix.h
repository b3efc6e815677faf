#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/base/ids.h"
#include "engine/chat/chat_template.h"
#include "engine/tokenizer/tokenizer.h"

namespace tandem::server {

// How many first tokens of a rendered chat do not depend on its first message that is neither
// `system` nor `developer`: instructions, tools and the template's words around them. Other chats
// of the same agent begin with these tokens. `text` and `ids` are the whole chat. Returns 0 if the
// template moves or rejects parts of the chat, so that nothing is known.
int64_t SharedTokens(const engine::ChatTemplate& chat_template, const engine::Tokenizer& tokenizer,
                     engine::RenderInput input, std::string_view text,
                     const std::vector<TokenId>& ids);

}  // namespace tandem::server
