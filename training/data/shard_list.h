#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tandem::training {

// The files of rows (.parquet, .jsonl, .ndjson, .json) that a path means, in the order of their
// names. A path is
// - a file;
// - a pattern: * and ? in its last part, as a shell has them;
// - several of these with ; between them, in this order;
// - a directory in the hub's layout: files `<split>.parquet` or `<split>-00000-of-00003*.parquet`,
//   or folders `<split>/` of files, in the directory itself or in its `data` or `default`;
// - a data set in the hub's cache: `datasets--ORG--NAME`, whose main snapshot is such a directory.
// In a directory with several splits, `split` says which. Throws kNotFound for nothing there,
// kInvalidArgument for a split that is missing, not one of several, or has not all of its shards,
// and for files of which only some are Parquet.
std::vector<std::filesystem::path> ListShards(const std::filesystem::path& path,
                                              const std::string& split = "");

// Whether a path means files by a name that is not theirs: a directory, a pattern, a list.
bool MeansShards(const std::filesystem::path& path);

bool IsParquetName(const std::filesystem::path& path);

}  // namespace tandem::training
