#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem {

// Percent-decodes once. Returns nullopt when two hex digits do not follow a `%`.
std::optional<std::string> PercentDecode(std::string_view text);

// Percent-encodes all bytes except letters, digits and `-._~`, for one path segment.
std::string PercentEncode(std::string_view text);

struct RequestTarget {
  std::string path;  // decoded
  std::vector<std::pair<std::string, std::string>> query;
};

// Parses a request target: origin form, absolute form (its authority is dropped) or `*`. Returns
// nullopt for anything else, and for paths that decode to control characters, `.` or `..` segments
// or `//`. They have no meaning here and never reach a file system.
std::optional<RequestTarget> ParseRequestTarget(std::string_view target);

// An absolute http or https URL of a client. Query and user info may hold secrets: messages use
// Display() only.
struct Url {
  bool is_https = false;
  std::string user_info;  // undecoded, without the '@'
  std::string host;       // lower case; an IPv6 address without its brackets
  uint16_t port = 0;
  std::string target;  // "/path?query", undecoded

  // Value of a Host header; with the port only if it is not the scheme's default.
  std::string Authority() const;
  std::string Origin() const;   // "https://host:port"
  std::string Display() const;  // without query and user info
};

// Returns nullopt for other schemes, for invisible or non-ASCII characters and backslashes, and
// beyond 16 KiB. Drops a fragment.
std::optional<Url> ParseUrl(std::string_view text);
// Resolves a Location header: absolute, `//host/…`, `/path`, `path` or `?query`.
std::optional<Url> ResolveUrl(const Url& base, std::string_view reference);
// Whether scheme, host and port are equal.
bool IsSameOrigin(const Url& a, const Url& b);

}  // namespace tandem
