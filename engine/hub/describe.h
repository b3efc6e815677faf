#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/hub/options.h"
#include "engine/hub/reference.h"

namespace tandem::engine {

// What a model's files say at their beginnings, fetched without its weights: config.json and the
// index whole, of safetensors and GGUF files the header. Nothing is kept in the cache, and the
// bytes are not checked against the hub's hashes: they describe, they are not served.
struct RemoteFile {
  std::string name;
  std::string head;
  uint64_t bytes = 0;  // of the whole file
};
// Throws like PullModel, and kUnsupported for a GGUF model in several files.
std::vector<RemoteFile> DescribeHubModel(const HubReference& reference, const HubOptions& options);

}  // namespace tandem::engine
