#include "server/launch/shell_words.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/quoted.h"

namespace tandem::server {

std::string ShellWord(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\0' || c == '\n' || c == '\r') {
      throw Error(ErrorCode::kInvalidArgument,
                  "a line end cannot stand in a script: " + Quoted(text));
    }
    if (c == '\'') {
      out += "'\\''";
    } else {
      out.push_back(c);
    }
  }
  return out + "'";
}

std::string ShellWords(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + ShellWord(word);
  return out;
}

void CheckToolOption(std::string_view option, const std::vector<std::string>& reserved,
                     std::string_view what) {
  const std::string_view name = option.substr(0, option.find('='));
  const bool is_plain = std::none_of(option.begin(), option.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
  const bool is_option =
      name.size() > 2 && name.starts_with("--") &&
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string_view::npos;
  if (!is_plain || !is_option) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(what) + " must be --name=value or --name, got " + Quoted(option));
  }
  if (std::find(reserved.begin(), reserved.end(), name) != reserved.end()) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(what) + " may not set " + std::string(name) + ": Tandem sets it");
  }
}

}  // namespace tandem::server
