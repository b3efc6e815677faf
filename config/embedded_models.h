#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string_view>

#include "engine/formats/model_dir.h"

namespace tandem::config {

// Models that are linked into the program, by the name under which they are served. Their bytes are
// part of the executable's read-only pages: opening one copies nothing.

inline constexpr std::string_view kDefaultModel = "tandem-stories";

std::span<const std::string_view> EmbeddedModelNames();
// Nothing when there is no embedded model of that name.
std::optional<engine::ModelDir> OpenEmbeddedModel(std::string_view name);
// Writes its files to a directory that is not there yet, all or nothing. REQUIRES: there is an
// embedded model of that name. Throws kIo.
void WriteEmbeddedModel(std::string_view name, const std::filesystem::path& dir);

}  // namespace tandem::config
