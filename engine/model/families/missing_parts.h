#pragma once

#include <span>
#include <string_view>

namespace tandem::engine {

// An architecture of transformers that no family computes.
struct MissingArchitecture {
  std::string_view architecture, model_type;
  std::string_view part;  // the op or part that it needs and that does not exist here
};

std::span<const MissingArchitecture> MissingArchitectures();
// The part that this class or model type needs; empty when the table does not have it.
std::string_view MissingPart(std::string_view architecture);

}  // namespace tandem::engine
