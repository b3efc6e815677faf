#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tandem::training {

// The files of rows (.parquet, .array_record, .csv, .jsonl, .ndjson, .json; the last four also as
// .gz or .zst) that a path selects, ordered by name. A path is
// - a file;
// - a pattern: * and ? in its last component, as in a shell;
// - a list of paths separated by ;, in this order;
// - a directory in the hub's layout, with files `<split>.parquet` or
//   `<split>-00000-of-00003*.parquet` (`<split>.array_record-00000-of-00003`) or folders
//   `<split>/`, in the directory or in its `data` or `default`;
// - a data set in the hub's cache: `datasets--ORG--NAME`, whose main snapshot is such a directory.
// `split` selects one of several splits. Throws kNotFound when nothing matches. Throws
// kInvalidArgument for a missing, ambiguous or incomplete split, and for a mix of Parquet and other
// files.
std::vector<std::filesystem::path> ListShards(const std::filesystem::path& path,
                                              const std::string& split = "");

// The paths of a list separated by ;, or the path itself.
std::vector<std::filesystem::path> PartsOfList(const std::filesystem::path& path);

// Whether a path selects files by another name: a directory, a pattern, a list.
bool MeansShards(const std::filesystem::path& path);

bool IsParquetName(const std::filesystem::path& path);
// Whether the name ends in .array_record or .arrayrecord, also with a shard's number behind:
// x.array_record-00000-of-01024.
bool IsArrayRecordName(const std::filesystem::path& path);

// The container of a file of rows.
enum class RowContainer { kAuto, kJson, kCsv, kParquet };
// By the file's extension; other names are JSON.
RowContainer ContainerOf(const std::filesystem::path& path);

}  // namespace tandem::training
