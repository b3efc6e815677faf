#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>

#include "engine/tensor/dtype.h"

namespace tandem::bench {

// `tandem bench orbax DIR`: imports a MaxText checkpoint as Hugging Face tensors, in pieces like a
// conversion. The import and a plain read of the arrays are compared with decompressing all chunks
// into used memory. Each runs on all threads, which share an array's chunks when no array is left.
struct OrbaxBenchOptions {
  std::filesystem::path path;  // anything OpenMaxText opens
  std::filesystem::path base;
  std::optional<engine::DType> dtype;  // dtype of the decoded tensors
  int64_t max_chunk_bytes = 0;         // > 0: measures a copy with chunks of at most this size
  int threads = 0;                     // 0: physical cores
  int rounds = 5;
};

int RunOrbaxBench(std::ostream& out, const OrbaxBenchOptions& options);

}  // namespace tandem::bench
