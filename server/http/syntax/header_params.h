#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::server {

// A header value with parameters, `form-data; name="file"; filename*=UTF-8''a%20b`.
struct HeaderParams {
  std::string value;                                        // lower case
  std::vector<std::pair<std::string, std::string>> params;  // names in lower case, as written

  // As written, or null.
  const std::string* Find(std::string_view name) const;
  // What `NAME*` says (RFC 8187) where it is there and legible, else NAME. UTF-8 if the sender's
  // is.
  std::optional<std::string> FindExtended(std::string_view name) const;
};

// nullopt for what is malformed, or names a parameter twice. In quotes a backslash escapes quotes
// and backslashes and nothing else: browsers have sent paths of Windows there.
std::optional<HeaderParams> ParseHeaderParams(std::string_view text);

}  // namespace tandem::server
