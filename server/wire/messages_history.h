#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "server/wire/field_reader.h"

namespace tandem::server {

// Reads `system` and `messages` of a Messages request and appends them to `chat_messages`, a list
// for ParseChatRequest. Returns whether the answer continues the last message. The rules are:
//
// - The system prompt becomes the first message. Messages of role system stay where they are
//   if `takes_late_system` returns true, else they join the first message.
// Blocks with Claude Code's billing header are
//   dropped: they change with every request, so that no prefix would be cached.
// - Neighbouring messages of one role become one message, as in Anthropic's API.
// - `tool_use` becomes a tool call, `tool_result` a message of role tool with the tool's name. The
//   text of a failed result begins with "Error: ". `thinking` becomes reasoning_content.
//   `redacted_thinking` is dropped, because only Anthropic can read it.
// - A last message of the assistant is continued; an empty one is dropped.
//
// Linear in the size of the list. Throws as FieldReader does, with paths such as
// "messages[2].content[0].text", and kUnsupported (unsupported_value) for images and documents.
bool ReadMessagesHistory(FieldReader& reader, const std::function<bool()>& takes_late_system,
                         nlohmann::ordered_json& chat_messages);

}  // namespace tandem::server
