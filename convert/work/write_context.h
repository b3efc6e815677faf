#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "convert/tensors/model_source.h"
#include "engine/io/content_hash.h"
#include "engine/ops/ops_context.h"

namespace tandem::convert {

class Journal;

// Arguments of a writer besides the spec. The writer calls `advance`, `warn`, `report` and `hashed`
// on the thread that called it; an exception from them ends the conversion.
struct WriteContext {
  const ModelSource& source;
  // Becomes the target after writing and comparison: an empty directory, or the file to create.
  std::filesystem::path target;
  engine::OpsContext& ops;  // its pool may process several tensors at a time
  // Reports source tensor bytes processed since the last call. Must be set.
  std::function<void(int64_t bytes)> advance;
  // Lists what a killed conversion wrote. Null: the writer cannot resume.
  Journal* journal = nullptr;
  // Reports what the target format cannot express.
  std::function<void(const std::string& text)> warn = [](const std::string&) {};
  // Receives a JSON object for the record and the result, stored under the format's name.
  std::function<void(std::string json)> report = [](const std::string&) {};
  // Receives hashes computed while writing, so that the record need not read the files again.
  std::function<void(const engine::FileHashes&)> hashed = [](const engine::FileHashes&) {};
};

}  // namespace tandem::convert
