#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "engine/io/atomic_write.h"

namespace tandem::convert {

struct ReshardOptions {
  int64_t shard_bytes = int64_t{4} << 30;  // of tensors, at most, in a file that has several
  std::filesystem::path cache_dir = {};    // where hashes are remembered; empty: nowhere
  engine::IfThere if_there = engine::IfThere::kRefuse;
  std::function<void(int64_t bytes)> advance = {};  // may throw to give up
};
struct ReshardResult {
  int64_t shards = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;
};

// Writes the tensors of a model that engine::ModelDir opens, bit for bit, as a Hugging Face
// directory in as many safetensors files as the option makes, in the order of their names, with
// model.safetensors.index.json; one alone is model.safetensors. What was written is read again and
// compared; convert.json says so. Published whole or not at all. Throws kInvalidArgument for
// shard_bytes below 1, kUnsupported for weights in blocks of integers, kDataLoss.
ReshardResult Reshard(const std::filesystem::path& source, const std::filesystem::path& target,
                      const ReshardOptions& options);

}  // namespace tandem::convert
