#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem {

// Percent-decodes once; nullopt when a `%` is not followed by two hex digits.
std::optional<std::string> PercentDecode(std::string_view text);

// Percent-encodes everything but letters, digits and `-._~`: text as one segment of a path.
std::string PercentEncode(std::string_view text);

struct Target {
  std::string path;  // decoded
  std::vector<std::pair<std::string, std::string>> query;
};

// Splits a request target (origin form, or absolute form whose authority is dropped; `*` stays
// itself). nullopt for anything else, and for paths that decode to control characters, `.` or `..`
// segments or `//`: such paths never mean anything here, and never reach a file system.
std::optional<Target> ParseTarget(std::string_view target);

// An absolute http or https URL, as a client uses it. Queries and user info may hold secrets: show
// Display() to people, never the rest.
struct Url {
  bool is_https = false;
  std::string user_info;  // undecoded, without the '@'
  std::string host;       // lower case; an IPv6 address without its brackets
  uint16_t port = 0;
  std::string target;  // "/path?query", undecoded

  // What a Host header says: the port only where it is not the scheme's.
  std::string Authority() const;
  std::string Origin() const;   // "https://host:port"
  std::string Display() const;  // without query and user info
};

// nullopt for other schemes, for what is not visible ASCII or holds a backslash, and for more than
// 16 KiB. A fragment is dropped.
std::optional<Url> ParseUrl(std::string_view text);
// What a Location header means: absolute, `//host/…`, `/path`, `path` or `?query`.
std::optional<Url> ResolveUrl(const Url& base, std::string_view reference);
// Scheme, host and port are the same.
bool IsSameOrigin(const Url& a, const Url& b);

}  // namespace tandem
