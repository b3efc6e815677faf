#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "training/data/parquet/parquet_file.h"
#include "training/data/parquet/parquet_rows.h"

namespace tandem::training {

// The rows of several Parquet files, concatenated, with random access by number. Thread-safe; one
// thread decodes at a time. The cache limit of ParquetOptions covers all files together.
class ParquetDataSet {
 public:
  // Without `columns`: ReadableColumns of the first file. Every file must have the columns with the
  // same types. Throws the errors of ParquetFile::Open and ParquetRows, and kInvalidArgument for
  // files that do not match or without a readable column.
  static std::shared_ptr<const ParquetDataSet> Open(const std::vector<std::filesystem::path>& files,
                                                    const std::vector<std::string>& columns = {},
                                                    ParquetOptions options = {});

  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  const std::vector<std::string>& columns() const { return columns_; }
  // REQUIRES: 0 <= i < size(). Throws the errors of ParquetRows::JsonRow.
  nlohmann::ordered_json Read(int64_t i) const;
  std::string Where(int64_t i) const;  // "train-00001-of-00002.parquet, row 17", from 1
  const std::string& name() const { return name_; }  // of the first file

 private:
  ParquetDataSet() = default;
  void Add(const std::filesystem::path& path);
  size_t FileOf(int64_t i) const;
  int64_t BeginOf(size_t file_idx) const { return file_idx == 0 ? 0 : ends_[file_idx - 1]; }
  void MakeRoom(size_t keep) const;

  std::vector<std::string> columns_;
  std::vector<std::string> types_;  // of columns_, as text
  std::vector<std::string> names_;  // of files
  std::vector<int64_t> ends_;       // for each file, the number after its last row
  std::string name_;
  ParquetOptions options_;
  mutable std::mutex mutex_;                // guards rows_ and last_use_
  mutable std::vector<ParquetRows> rows_;   // one per file
  mutable std::vector<uint64_t> last_use_;  // per file, a value of n_uses_
  mutable uint64_t n_uses_ = 0;
};

}  // namespace tandem::training
