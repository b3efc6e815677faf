#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string_view>

#include "engine/formats/model_dir.h"

namespace tandem::config {

// Models that are linked into the program, by served name. Their bytes are in the executable's
// read-only pages: opening one copies nothing.

inline constexpr std::string_view kDefaultModel = "tandem-stories";

std::span<const std::string_view> EmbeddedModelNames();
// Nullopt when there is no embedded model of that name.
std::optional<engine::ModelDir> OpenEmbeddedModel(std::string_view name);
// Writes the model's files to a new directory, all or nothing. REQUIRES: `name` is embedded and
// `dir` does not exist. Throws kIo.
void WriteEmbeddedModel(std::string_view name, const std::filesystem::path& dir);

}  // namespace tandem::config
