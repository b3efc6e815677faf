#pragma once

#include <filesystem>
#include <string>

#include "server/files/file_store.h"
#include "server/handlers/model_registry.h"
#include "server/jobs/job.h"

namespace tandem::server {

// Where the model or adapter at `path` comes from, as its record tells (convert/provenance.h), with
// the hash of the weights that were loaded, if it is given. Empty: there is no record. One that
// cannot be read is a warning in the log, and no more.
std::string ModelProvenance(const std::string& id, const std::filesystem::path& path,
                            const std::string& content_sha256);

// Writes into `dir`, which a fine-tuning job has made, of which base and which files: a record that
// goes with it wherever it is taken. Does nothing where there is one. What cannot be hashed any
// more says so; a record that cannot be written is a warning.
void RecordFineTuning(const Job& job, const std::filesystem::path& dir, const ModelRegistry& models,
                      const FileStore& files);

}  // namespace tandem::server
