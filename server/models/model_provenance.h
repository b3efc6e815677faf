#pragma once

#include <filesystem>
#include <string>

namespace tandem::server {

// Provenance record of the model or adapter at `path` (convert/work/provenance.h), as JSON text. A
// non-empty `content_sha256`, the hash of the loaded weights, is added to it. Empty when there is
// no record. An unreadable record is logged as a warning.
std::string ModelProvenance(const std::string& id, const std::filesystem::path& path,
                            const std::string& content_sha256);

}  // namespace tandem::server
