#pragma once

#include <cstdint>
#include <optional>

namespace tandem::server {

// Whose records a request may see: nobody's and those of this client number (ApiKeys::ClientOf).
// nullopt: all records. 0 owns nothing: a client without a key.
using Viewer = std::optional<int64_t>;

// Whether that viewer may see a record of that owner; nullopt: nobody's.
inline bool MaySee(const Viewer& viewer, const std::optional<int64_t>& owner) {
  return !viewer || !owner || *viewer == *owner;
}

}  // namespace tandem::server
