#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tandem::server {

// Translates the messages of /api/chat into a list for ParseChatRequest; see ParseOllamaChat.
// Throws as FieldReader does, with paths such as "messages[2].content", and kUnsupported
// (unsupported_value) for images.
nlohmann::ordered_json TranslateOllamaMessages(const nlohmann::ordered_json& messages);

// Throws kUnsupported (unsupported_value) if the list `images` is not empty. `path` is its name.
void RefuseImages(const nlohmann::ordered_json* images, const std::string& path);

}  // namespace tandem::server
