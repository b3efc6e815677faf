#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tandem::engine {

// Decodes RFC 4648 with padding; nullopt for anything else.
std::optional<std::string> DecodeBase64(std::string_view text);

}  // namespace tandem::engine
