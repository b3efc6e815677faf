#pragma once

#include <string>

#include "engine/chat/answers/tool_format.h"
#include "engine/chat/chat_template.h"

namespace tandem::engine {

// The row in which a chat template writes tool calls; null if it writes none, or in an unknown
// form. Renders a chat with one call and returns the first row that reads the same call from it.
// Bounded by the budgets of the template.
const ToolFormat* DetectToolFormat(const ChatTemplate& chat_template, const std::string& bos_text,
                                   const std::string& eos_text);

}  // namespace tandem::engine
