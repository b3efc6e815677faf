#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::server {

// Percent-decodes once; nullopt when a `%` is not followed by two hex digits.
std::optional<std::string> PercentDecode(std::string_view text);

struct Target {
  std::string path;  // decoded
  std::vector<std::pair<std::string, std::string>> query;
};

// Splits a request target (origin form, or absolute form whose authority is dropped; `*` stays
// itself). nullopt for anything else, and for paths that decode to control characters, `.` or `..`
// segments or `//`: such paths never mean anything here, and never reach a file system.
std::optional<Target> ParseTarget(std::string_view target);

}  // namespace tandem::server
