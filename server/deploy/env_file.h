#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace tandem::server {

// A value of a config.env file and the line that gives it.
struct EnvValue {
  std::string text;
  int line = 0;  // from 1
};
using EnvValues = std::map<std::string, EnvValue, std::less<>>;

// Reads lines NAME=value as a POSIX shell would: `export` before the name, quotes, `\` escapes, `#`
// comments, and ${NAME} of an earlier line. Command substitution is refused, because nothing is
// ever run. Throws kInvalidArgument "FILE:LINE: …"; messages never show a value.
EnvValues ParseEnvFile(std::string_view text, const std::string& file);
// The same for a file of at most 1 MiB. Throws kNotFound and kIo too.
EnvValues ReadEnvFile(const std::filesystem::path& file);

}  // namespace tandem::server
