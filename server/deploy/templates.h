#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace tandem::server {

// A template of config/deploy/templates or a preset that the manifests carry, linked into the
// program.
struct DeployTemplate {
  std::string_view path;  // below the output directory
  std::string_view text;
  bool has_values = true;  // false: copied as it is
};
const std::vector<DeployTemplate>& DeployTemplates();

}  // namespace tandem::server
