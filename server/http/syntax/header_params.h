#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::server {

// A header value with parameters, such as `form-data; name="file"; filename*=UTF-8''a%20b`.
struct HeaderParams {
  std::string value;                                        // in lower case
  std::vector<std::pair<std::string, std::string>> params;  // names in lower case, values as
                                                            // written

  // The value as written, or null.
  const std::string* Find(std::string_view name) const;
  // The value of `NAME*` (RFC 8187) if present and valid, otherwise that of NAME. Valid UTF-8 only
  // if the sender's value is.
  std::optional<std::string> FindExtended(std::string_view name) const;
};

// Returns nullopt for malformed text or a repeated parameter. In quotes, a backslash escapes only
// quotes and backslashes, because some browsers send Windows paths.
std::optional<HeaderParams> ParseHeaderParams(std::string_view text);

}  // namespace tandem::server
