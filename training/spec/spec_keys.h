#pragma once

#include <span>
#include <string>
#include <vector>

#include "training/spec/spec_value.h"

namespace tandem::training {

// One key of a spec. From this table come parsing, the suggestion for an unknown key, what `tandem
// config` explains and shows, and the rows of README.md.
struct SpecKey {
  std::vector<std::string> names;  // ours, then the other spellings (MaxText's first)
  SpecValue value;
  std::string effect;
  std::string default_text = {};  // where showing the value of an empty spec would not say it
};

// The one key that the reader of files follows itself.
inline constexpr const char* kBaseConfig = "base_config";

std::span<const SpecKey> SpecKeys();
const SpecKey* FindSpecKey(const std::string& name);  // by any of its names; null: none
std::string NearestSpecKey(const std::string& name);

std::string DefaultOf(const SpecKey& key);

// The row of this key in README.md.
std::string MarkdownRow(const SpecKey& key);

}  // namespace tandem::training
