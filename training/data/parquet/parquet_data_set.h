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

// The rows of several Parquet files, one behind the other, read at random by number. Safe from any
// thread; one decodes at a time. The cache of ParquetOptions is for all files together.
class ParquetDataSet {
 public:
  // No columns: those of ReadableColumns in the first file. Every file must have the columns, of
  // the same types. Throws what ParquetFile::Open and ParquetRows do, kInvalidArgument for files
  // that do not fit together and for no column at all.
  static std::shared_ptr<const ParquetDataSet> Open(const std::vector<std::filesystem::path>& files,
                                                    const std::vector<std::string>& columns = {},
                                                    ParquetOptions options = {});

  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  const std::vector<std::string>& columns() const { return columns_; }
  // REQUIRES: 0 <= i < size(). Throws as ParquetRows::JsonRow does.
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
  std::vector<std::string> types_;  // of columns_, in words
  std::vector<std::string> names_;  // of files
  std::vector<int64_t> ends_;       // the row after each file's last
  std::string name_;
  ParquetOptions options_;
  mutable std::mutex mutex_;                // guards rows_ and last_use_
  mutable std::vector<ParquetRows> rows_;   // a file each
  mutable std::vector<uint64_t> last_use_;  // of each file, by n_uses_
  mutable uint64_t n_uses_ = 0;
};

}  // namespace tandem::training
