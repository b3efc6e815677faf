#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tandem::server {

// A model on disk that /admin/models/load or /admin/adapters/load may accept. Its files were not
// read beyond config.json.
struct FoundModel {
  enum class Kind { kDirectory, kGguf, kAdapter };
  std::string path;  // relative to the scanned directory
  Kind kind = Kind::kDirectory;
  std::string family = {};  // model_type of config.json; empty: unknown
  std::string dtype = {};   // torch_dtype of config.json; empty: unknown
  std::string base = {};    // of an adapter: base_model_name_or_path; empty: unknown
  int64_t bytes = 0;        // of the weight files
};

struct ModelScanLimits {
  int depth = 5;           // of folders below the directory
  size_t entries = 20000;  // directory entries to look at
  size_t models = 500;
};

struct ModelScan {
  std::vector<FoundModel> models;  // sorted by path
  bool is_complete = true;         // false: a limit ended the scan
};

// Finds models below `root`: Hugging Face directories with safetensors, GGUF files, PEFT adapters.
// Shallow folders come first. Skips hidden names, unreadable folders, and folders that are symbolic
// links, so that nothing outside the root is listed and the scan ends.
ModelScan FindModelsBelow(const std::filesystem::path& root, const ModelScanLimits& limits = {});

}  // namespace tandem::server
