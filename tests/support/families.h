#pragma once

#include <string>
#include <vector>

#include "engine/model/families/family.h"

namespace tandem::tests {

// The name of every family, for tests of promises that all families keep.
inline std::vector<std::string> FamilyNames() {
  std::vector<std::string> names;
  for (const engine::FamilySpec* family : engine::Families()) names.emplace_back(family->name);
  return names;
}

}  // namespace tandem::tests
