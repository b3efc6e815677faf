#pragma once

#include <span>
#include <string>
#include <vector>

#include "training/spec/spec_value.h"

namespace tandem::training {

// One key of a spec. This table drives parsing, suggestions for unknown keys, `tandem config` and
// the rows of README.md.
struct SpecKey {
  std::vector<std::string> names;  // our name, then other spellings (MaxText's first)
  SpecValue value;
  std::string effect;
  std::string default_text = {};  // replaces the value shown for an empty spec
};

// The file reader handles this key itself.
inline constexpr const char* kBaseConfig = "base_config";

std::span<const SpecKey> SpecKeys();
const SpecKey* FindSpecKey(const std::string& name);  // by any of its names; null: unknown
std::string NearestSpecKey(const std::string& name);

std::string DefaultOf(const SpecKey& key);

// The key's entry in README.md: a list item of lines of at most 120 columns.
std::string MarkdownEntry(const SpecKey& key);

}  // namespace tandem::training
