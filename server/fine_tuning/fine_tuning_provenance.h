#pragma once

#include <filesystem>

#include "server/files/file_store.h"
#include "server/jobs/job.h"
#include "server/models/model_registry.h"

namespace tandem::server {

// Writes a record of the base model and the training files into `dir`, the result of a fine-tuning
// job. The record travels with the directory. Does nothing when a record exists. A parent that can
// no longer be hashed gets a reason instead. A failed write is logged as a warning.
void RecordFineTuning(const Job& job, const std::filesystem::path& dir, const ModelRegistry& models,
                      const FileStore& files);

}  // namespace tandem::server
