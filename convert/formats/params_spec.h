#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "convert/spec/spec.h"

namespace tandem::convert {

// Two conversions that have verbs of their own, as specs for Convert. Of a directory of a run's
// steps the newest is the source.

// Weights alone, as MaxText's generate_param_only_checkpoint makes them: without the optimizer's
// state, each layer by itself, and in `dtype`, rounded once from the master weights; "keep": as the
// checkpoint has them. Throws kInvalidArgument for another dtype.
ConvertSpec ExportParamsSpec(const std::filesystem::path& source,
                             const std::filesystem::path& target, const std::string& dtype);

// The weights bit for bit, in files of `shard_bytes` at most, of which a larger tensor has one
// alone. Throws kInvalidArgument for less than a byte, kUnsupported for weights in blocks of
// integers, which such files do not have.
ConvertSpec ReshardSpec(const std::filesystem::path& source, const std::filesystem::path& target,
                        int64_t shard_bytes);

}  // namespace tandem::convert
