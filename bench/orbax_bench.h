#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>

#include "engine/tensor/dtype.h"

namespace tandem::bench {

// `tandem bench orbax DIR`: a checkpoint of MaxText told as tensors of Hugging Face, in pieces as
// conversions take them, beside decompressing all of its chunks alone, into memory that was used
// before, and beside reading its arrays as they are. Each on all threads, which share the chunks of
// an array when there are no more arrays to begin.
struct OrbaxBenchOptions {
  std::filesystem::path path;  // what OpenMaxText opens
  std::filesystem::path base;
  std::optional<engine::DType> dtype;  // that tensors are told in
  int64_t max_chunk_bytes = 0;         // of a copy that is measured instead, beside it; 0: as it is
  int threads = 0;                     // 0: physical cores
  int rounds = 5;
};

int RunOrbaxBench(std::ostream& out, const OrbaxBenchOptions& options);

}  // namespace tandem::bench
