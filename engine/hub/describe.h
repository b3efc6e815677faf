#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/hub/options.h"
#include "engine/hub/reference.h"

namespace tandem::engine {

// The beginning of a model's file, fetched without the weights: config.json and the index are
// whole, safetensors and GGUF files give their header. The cache keeps none of it. The bytes only
// describe a model, so the hub's hashes are not checked.
struct RemoteFile {
  std::string name;
  std::string head;
  uint64_t bytes = 0;  // of the whole file
};
// Throws like PullModel, and kUnsupported for a GGUF model in several files.
std::vector<RemoteFile> DescribeHubModel(const HubReference& reference, const HubOptions& options);

}  // namespace tandem::engine
