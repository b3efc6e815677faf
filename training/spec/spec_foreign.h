#pragma once

#include <optional>
#include <string>

namespace tandem::training {

// A key of MaxText's that is none of ours. Most steer its backend or say what always holds here,
// and are accepted, so that its files can be used as they are; where passing over the value would
// change what the user gets, it is refused.
struct ForeignKey {
  std::string name;      // with "*" at the end: all that begin so
  std::string harmless;  // "*": every value is accepted; else values that are, with '|' between
  std::string note;      // what holds here
};

std::optional<ForeignKey> FindForeignKey(const std::string& name);
bool AcceptsForeignValue(const ForeignKey& key, const std::string& value);

}  // namespace tandem::training
