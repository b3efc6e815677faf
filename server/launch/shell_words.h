#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem::server {

// One word of a POSIX shell in single quotes. Throws kInvalidArgument for a NUL or a line end.
std::string ShellWord(std::string_view text);
// The words in order, with spaces between them.
std::string ShellWords(const std::vector<std::string>& words);

// A scheduler's option "--name=value" without control characters, whose name is not among
// `reserved`. Throws kInvalidArgument that names `what`.
void CheckToolOption(std::string_view option, const std::vector<std::string>& reserved,
                     std::string_view what);

}  // namespace tandem::server
