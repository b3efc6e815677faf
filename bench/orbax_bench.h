#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>

namespace tandem::bench {

// `tandem bench orbax DIR`: a checkpoint of MaxText told as tensors of Hugging Face, beside
// decompressing its chunks alone, and beside reading its arrays as they are; on all threads, by
// parameters.
struct OrbaxBenchOptions {
  std::filesystem::path path;  // what OpenMaxText opens
  std::filesystem::path base;
  int threads = 0;  // 0: physical cores
  int rounds = 5;
};

int RunOrbaxBench(std::ostream& out, const OrbaxBenchOptions& options);

}  // namespace tandem::bench
