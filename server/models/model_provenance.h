#pragma once

#include <filesystem>
#include <string>

namespace tandem::server {

// Returns the provenance record of the model or adapter at `path` (convert/work/provenance.h) as
// JSON text. Adds `content_sha256`, the hash of the loaded weights, if it is not empty. Returns ""
// if no record exists or it cannot be read; the latter logs a warning.
std::string ModelProvenance(const std::string& id, const std::filesystem::path& path,
                            const std::string& content_sha256);

}  // namespace tandem::server
