#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace tandem::convert {

struct VerifyOptions {
  bool quick = false;  // what sizes and headers tell, without reading weights
  // Told how many bytes have been read since the last call; may throw to give up.
  std::function<void(int64_t bytes)> advance = {};
};

struct VerifyReport {
  std::string format;
  std::filesystem::path path;  // of a directory of steps, the newest
  std::string held_to;  // "SHA-256 of manifest.json", "sizes": what faults would have shown in
  int64_t files = 0;    // or leaves
  int64_t bytes = 0;
  std::vector<std::string> faults;  // each names file, tensor or chunk
};

// Looks for damage in whatever OpenTensors opens. What has a manifest.json is held to the sizes and
// hashes in it, what has convert.json to the hash of its weights there; of Orbax every chunk is
// decoded and every checksum checked; what has neither is opened, which checks headers, index and
// sizes, and read. Throws kNotFound, kUnsupported for what is none of these.
VerifyReport VerifyTensors(const std::filesystem::path& path, const VerifyOptions& options);

}  // namespace tandem::convert
