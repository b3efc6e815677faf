#pragma once

#include <optional>
#include <string>

namespace tandem::training {

// A MaxText key without a counterpart here. A value that only steers MaxText's backend, or states
// what always holds here, is accepted, so that MaxText's files work unchanged. A value that
// cannot be ignored without changing the result is refused.
struct ForeignKey {
  std::string name;      // a trailing "*" matches every name with this prefix
  std::string harmless;  // accepted values, separated by '|'; "*": all
  std::string note;      // how this program behaves
};

std::optional<ForeignKey> FindForeignKey(const std::string& name);
bool AcceptsForeignValue(const ForeignKey& key, const std::string& value);

}  // namespace tandem::training
