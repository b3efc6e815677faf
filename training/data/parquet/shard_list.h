#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tandem::training {

// The Parquet files that a path means, in the order of their names. A path is
// - a file;
// - a pattern: * and ? in its last part, as a shell has them;
// - a directory in the hub's layout: files `<split>.parquet` or `<split>-00000-of-00003*.parquet`,
// or
//   folders `<split>/` of files, in the directory itself or in its `data` or `default`.
// In a directory with several splits, `split` says which. Throws kNotFound for nothing there,
// kInvalidArgument for a split that is missing, not one of several, or has not all of its shards.
std::vector<std::filesystem::path> ListParquetFiles(const std::filesystem::path& path,
                                                    const std::string& split = "");

}  // namespace tandem::training
