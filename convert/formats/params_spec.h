#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "convert/spec/spec.h"

namespace tandem::convert {

// Specs of the two conversions with commands of their own. For a run's directory the newest step is
// the source.

// Weights only, like MaxText's generate_param_only_checkpoint: no optimizer state, one tensor per
// layer. They are rounded once from the masters to `dtype`, or unchanged if it is "keep". Throws
// kInvalidArgument for another dtype.
ConvertSpec ExportParamsSpec(const std::filesystem::path& source,
                             const std::filesystem::path& target, const std::string& dtype);

// The weights bit for bit, in files of at most `shard_bytes`; a larger tensor has a file of its
// own. Throws kInvalidArgument for less than 1 byte, kUnsupported for quantised weights.
ConvertSpec ReshardSpec(const std::filesystem::path& source, const std::filesystem::path& target,
                        int64_t shard_bytes);

}  // namespace tandem::convert
