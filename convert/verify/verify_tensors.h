#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace tandem::convert {

struct VerifyOptions {
  bool quick = false;  // checks sizes and headers without reading weights
  // Receives the bytes read since the last call; may throw to stop.
  std::function<void(int64_t bytes)> advance = {};
};

struct VerifyReport {
  std::string format;
  std::filesystem::path path;  // the newest step of a directory of steps
  std::string held_to;         // the reference: "SHA-256 of manifest.json", "sizes", …
  int64_t files = 0;           // files, or Orbax leaves, or tensors
  int64_t bytes = 0;
  std::vector<std::string> faults;  // each names a file, tensor or chunk
};

// Looks for damage in anything that OpenTensors opens. A manifest.json is checked against the sizes
// and hashes in it, a model with a record (provenance.h) against the hash of its weights there.
// For Orbax every chunk is decoded and every checksum verified. Other files are opened, which
// checks headers, index and sizes, and read. Throws kNotFound, and kUnsupported for other kinds.
VerifyReport VerifyTensors(const std::filesystem::path& path, const VerifyOptions& options);

}  // namespace tandem::convert
