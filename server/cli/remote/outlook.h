#pragma once

#include <string>

namespace tandem::server {

// Flags of `tandem models MODEL`.
struct OutlookFlags {
  std::string
      model;  // a name of the hub, a directory, a GGUF file, a config.json, an embedded name
  std::string memory;
  int64_t max_model_len = 0;
  int threads = 0;
  bool is_json = false;
};

// Prints the needs of a model and its expected speed on this machine, for each dtype. Downloads
// only the headers of a model of the hub.
void PrintOutlook(const OutlookFlags& flags);

}  // namespace tandem::server
