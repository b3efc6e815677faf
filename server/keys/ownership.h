#pragma once

#include <cstdint>
#include <optional>

namespace tandem::server {

// The client number of a request (ApiKeys::ClientOf). The request may see the records of that
// client and records without an owner. nullopt sees all records. 0, a client without a key, owns
// nothing.
using Viewer = std::optional<int64_t>;

// Whether a viewer may see a record. `owner` is nullopt for a record without an owner.
inline bool MaySee(const Viewer& viewer, const std::optional<int64_t>& owner) {
  return !viewer || !owner || *viewer == *owner;
}

}  // namespace tandem::server
