#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "server/deploy/variables.h"

namespace tandem::server {

// Replaces every {{NAME}} of a template and escapes its value for the format that the name of the
// file tells: YAML, HCL, shell, or settings of plain words. A placeholder stands in a quoted string
// of the format; outside of one, only a number (YAML, HCL) or a plain word (settings) may come.
// Throws kInvalidArgument "FILE:LINE: …" for an unknown or missing variable, an unresolved YOUR_…,
// or a value that its place cannot hold.
std::string RenderTemplate(std::string_view file, std::string_view text,
                           const DeployValues& values);

// Renders all templates into a new directory `out`, all or nothing, and returns the paths below it.
// Replaces an `out` that an earlier rendering has made; throws kAlreadyExists for any other one.
std::vector<std::string> RenderDeploy(const DeployValues& values, const std::filesystem::path& out);

}  // namespace tandem::server
