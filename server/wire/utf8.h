#pragma once

#include <cstdint>
#include <string_view>

namespace tandem::server {

bool IsValidUtf8(std::string_view bytes);
// Unicode characters that begin in `bytes`.
int64_t CountCharacters(std::string_view bytes);

}  // namespace tandem::server
