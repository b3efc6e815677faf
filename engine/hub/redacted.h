#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace tandem::engine {

// Replaces every secret in a server's text by `mark`. Empty secrets count for nothing. If two begin
// at the same byte, the longer one is replaced. Shorten the text afterwards, never before: a cut
// secret would stay.
std::string Redacted(std::string_view text, std::initializer_list<std::string_view> secrets,
                     std::string_view mark);

}  // namespace tandem::engine
