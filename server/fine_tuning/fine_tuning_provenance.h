#pragma once

#include <filesystem>

#include "server/files/file_store.h"
#include "server/jobs/job.h"
#include "server/models/model_registry.h"

namespace tandem::server {

// Records the base model and the training files of a fine-tuning job in `dir`, its result or a
// checkpoint. Does nothing if a record exists. A parent that can no longer be hashed gets a reason
// instead of a hash. A failed write logs a warning.
void RecordFineTuning(const Job& job, const std::filesystem::path& dir, const ModelRegistry& models,
                      FileStore& files);

}  // namespace tandem::server
